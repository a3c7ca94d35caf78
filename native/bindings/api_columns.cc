// Columns that other APIs derive from a batch, computed in one pass.
//
// numpy would need one call per column; with 64 envs those calls cost more than the step.
#include <nanobind/nanobind.h>

#include <utility>

#include "bindings/bindings.h"
#include "bindings/numpy_arrays.h"

namespace nb = nanobind;

namespace envfleet::bindings {

namespace {

// dm_env.StepType
constexpr std::int32_t kFirst = 0, kMid = 1, kLast = 2;

// One column of a batch, read in place where possible and otherwise converted.
template <class T>
class InputColumn {
 public:
  InputColumn(nb::handle object, int type, npy_intp num_rows) {
    PyArrayObject* plain = as_plain_array(object.ptr());
    if (plain == nullptr || PyArray_TYPE(plain) != type) {
      converted_ = nb::steal(PyArray_FROM_OTF(object.ptr(), type, NPY_ARRAY_CARRAY_RO));
      if (!converted_.is_valid()) throw nb::python_error();
      plain = reinterpret_cast<PyArrayObject*>(converted_.ptr());
    }
    size_ = PyArray_SIZE(plain);
    if (num_rows >= 0 && size_ != num_rows) throw nb::value_error("expected columns of the same length");
    data_ = static_cast<const T*>(PyArray_DATA(plain));
  }

  npy_intp size() const { return size_; }
  T operator[](npy_intp row) const { return data_[row]; }

 private:
  nb::object converted_;
  npy_intp size_ = 0;
  const T* data_ = nullptr;
};

nb::tuple gym_columns(nb::handle reward, nb::handle terminated, nb::handle truncated) {
  const InputColumn<double> rewards(reward, NPY_FLOAT64, -1);
  const npy_intp num_rows = rewards.size();
  const InputColumn<npy_bool> ends(terminated, NPY_BOOL, num_rows), cuts(truncated, NPY_BOOL, num_rows);
  auto [reward32, reward32_data] = new_column<float>(NPY_FLOAT32, num_rows);
  auto [done, done_data] = new_column<npy_bool>(NPY_BOOL, num_rows);
  auto [only_truncated, only_truncated_data] = new_column<npy_bool>(NPY_BOOL, num_rows);
  for (npy_intp row = 0; row < num_rows; ++row) {
    reward32_data[row] = static_cast<float>(rewards[row]);
    done_data[row] = ends[row] | cuts[row];
    only_truncated_data[row] = cuts[row] & !ends[row];
  }
  return nb::make_tuple(std::move(reward32), std::move(done), std::move(only_truncated));
}

nb::tuple dm_columns(nb::handle elapsed_step, nb::handle terminated, nb::handle truncated) {
  const InputColumn<std::int32_t> elapsed(elapsed_step, NPY_INT32, -1);
  const npy_intp num_rows = elapsed.size();
  const InputColumn<npy_bool> ends(terminated, NPY_BOOL, num_rows), cuts(truncated, NPY_BOOL, num_rows);
  auto [step_type, step_type_data] = new_column<std::int32_t>(NPY_INT32, num_rows);
  auto [discount, discount_data] = new_column<float>(NPY_FLOAT32, num_rows);
  for (npy_intp row = 0; row < num_rows; ++row) {
    step_type_data[row] = (ends[row] | cuts[row]) != 0 ? kLast : elapsed[row] == 0 ? kFirst : kMid;
    discount_data[row] = ends[row] != 0 ? 0.0F : 1.0F;
  }
  return nb::make_tuple(std::move(step_type), std::move(discount));
}

}  // namespace

void bind_api_columns(nb::module_& module) {
  module.def("gym_columns", &gym_columns,
             "Return float32 rewards, done, and which rows were truncated without being terminated.");
  module.def("dm_columns", &dm_columns, "Return dm_env's step types and discounts.");
}

}  // namespace envfleet::bindings
