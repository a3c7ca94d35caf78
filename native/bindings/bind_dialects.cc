// Columns that older dialects want of a batch, each pass in one go.
//
// numpy would do it in a call a column; at 64 envs those calls cost more than the step.
#include <nanobind/nanobind.h>

#include <utility>

#include "bindings.h"
#include "numpy_api.h"

namespace nb = nanobind;

namespace envfleet::bindings {

namespace {

// dm_env.StepType
constexpr std::int32_t kFirst = 0, kMid = 1, kLast = 2;

// One column of a batch, readable in place; converted where it is not.
template <class T>
class Column {
 public:
  Column(nb::handle object, int type, npy_intp num_rows) {
    PyArrayObject* plain = as_plain_array(object.ptr());
    if (plain == nullptr || PyArray_TYPE(plain) != type) {
      converted_ = nb::steal(PyArray_FROM_OTF(object.ptr(), type, NPY_ARRAY_CARRAY_RO));
      if (!converted_.is_valid()) throw nb::python_error();
      plain = reinterpret_cast<PyArrayObject*>(converted_.ptr());
    }
    size_ = PyArray_SIZE(plain);
    if (num_rows >= 0 && size_ != num_rows) throw nb::value_error("expected columns of one length");
    data_ = static_cast<const T*>(PyArray_DATA(plain));
  }

  npy_intp size() const { return size_; }
  T operator[](npy_intp row) const { return data_[row]; }

 private:
  nb::object converted_;
  npy_intp size_ = 0;
  const T* data_ = nullptr;
};

template <class T>
std::pair<nb::object, T*> new_column(int type, npy_intp num_rows) {
  nb::object array = nb::steal(PyArray_SimpleNew(1, &num_rows, type));
  if (!array.is_valid()) throw nb::python_error();
  return {array, static_cast<T*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(array.ptr())))};
}

nb::tuple gym_columns(nb::handle reward, nb::handle terminated, nb::handle truncated) {
  const Column<double> rewards(reward, NPY_FLOAT64, -1);
  const npy_intp num_rows = rewards.size();
  const Column<npy_bool> ends(terminated, NPY_BOOL, num_rows), cuts(truncated, NPY_BOOL, num_rows);
  auto [small, small_data] = new_column<float>(NPY_FLOAT32, num_rows);
  auto [done, done_data] = new_column<npy_bool>(NPY_BOOL, num_rows);
  auto [by_clock, by_clock_data] = new_column<npy_bool>(NPY_BOOL, num_rows);
  for (npy_intp row = 0; row < num_rows; ++row) {
    small_data[row] = static_cast<float>(rewards[row]);
    done_data[row] = ends[row] | cuts[row];
    by_clock_data[row] = cuts[row] & !ends[row];
  }
  return nb::make_tuple(std::move(small), std::move(done), std::move(by_clock));
}

nb::tuple dm_columns(nb::handle elapsed_step, nb::handle terminated, nb::handle truncated) {
  const Column<std::int32_t> elapsed(elapsed_step, NPY_INT32, -1);
  const npy_intp num_rows = elapsed.size();
  const Column<npy_bool> ends(terminated, NPY_BOOL, num_rows), cuts(truncated, NPY_BOOL, num_rows);
  auto [step_type, step_type_data] = new_column<std::int32_t>(NPY_INT32, num_rows);
  auto [discount, discount_data] = new_column<float>(NPY_FLOAT32, num_rows);
  for (npy_intp row = 0; row < num_rows; ++row) {
    step_type_data[row] = (ends[row] | cuts[row]) != 0 ? kLast : elapsed[row] == 0 ? kFirst : kMid;
    discount_data[row] = ends[row] != 0 ? 0.0F : 1.0F;
  }
  return nb::make_tuple(std::move(step_type), std::move(discount));
}

}  // namespace

void bind_dialects(nb::module_& module) {
  module.def("gym_columns", &gym_columns, "float32 rewards, done, and which ended by the clock alone");
  module.def("dm_columns", &dm_columns, "dm_env's step types and discounts");
}

}  // namespace envfleet::bindings
