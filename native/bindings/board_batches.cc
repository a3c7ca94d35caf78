#include "board_batches.h"

#include <cstring>

namespace nb = nanobind;

namespace envfleet::bindings {

namespace {

using rows::Slot;

PyObject* checked(PyObject* made) {
  if (made == nullptr) throw nb::python_error();
  return made;
}

// A new array of one number a row, put into the tuple; its data.
template <class Number>
Number* add_column(PyObject* tuple, Py_ssize_t position, int type, std::int64_t count) {
  npy_intp num_rows = count;
  PyObject* array = checked(PyArray_ZEROS(1, &num_rows, type, 0));
  PyTuple_SET_ITEM(tuple, position, array);
  return static_cast<Number*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(array)));
}

std::int32_t env_of(const std::int32_t* env_ids, std::int64_t row) {
  return env_ids != nullptr ? env_ids[row] : static_cast<std::int32_t>(row);
}

}  // namespace

BoardBatches::BoardBatches(const rows::Desk& desk, nb::list obs, nb::list finals, nb::object info, nb::object whole_ids,
                           bool copy, bool has_finals)
    : desk_(desk), info_(std::move(info)), whole_ids_(std::move(whole_ids)), copy_(copy), has_finals_(has_finals) {
  for (nb::handle column : obs) obs_.emplace_back(nb::borrow(column));
  for (nb::handle column : finals) finals_.emplace_back(nb::borrow(column));
}

void BoardBatches::load_schema(nb::list entries) {
  if (!schema_.load(entries.ptr())) throw nb::python_error();
}

nb::list BoardBatches::observations() const {
  nb::list columns;
  const std::int32_t num_envs = desk_.geometry().num_envs;
  for (const RowColumn& column : obs_) columns.append(nb::steal(checked(column.gather(nullptr, num_envs))));
  return columns;
}

nb::object BoardBatches::rows_of(const std::int32_t* env_ids, std::int64_t count) {
  nb::object special = rows_to_look_at(env_ids, count);
  const auto num_obs = std::ssize(obs_);
  const auto num_finals = has_finals_ ? std::ssize(finals_) + 1 : 0;
  nb::object tuple = nb::steal(checked(PyTuple_New(num_obs + 5 + num_finals + 3)));
  Py_ssize_t next = 0;
  const auto add = [&](PyObject* made) { PyTuple_SET_ITEM(tuple.ptr(), next++, checked(made)); };
  for (const RowColumn& column : obs_) add(copy_ || env_ids != nullptr ? column.gather(env_ids, count) : column.view());
  add_numbers(tuple.ptr(), next, env_ids, count);
  next += 5;
  if (has_finals_) {
    const auto has_final = [&](std::int32_t env_id) { return desk_.slot(env_id).has_final != 0; };
    for (const RowColumn& column : finals_) add(column.gather_some(env_ids, count, has_final));
    auto* elapsed_step = add_column<std::int32_t>(tuple.ptr(), next++, NPY_INT32, count);
    for (std::int64_t row = 0; row < count; ++row) {
      const Slot& slot = desk_.slot(env_of(env_ids, row));
      if (slot.has_final != 0) elapsed_step[row] = slot.final_elapsed_step;
    }
  }
  add(unpack_info(env_ids, count, false));
  add(unpack_info(env_ids, count, true));
  add(special.release().ptr());
  return tuple;
}

nb::object BoardBatches::rows_to_look_at(const std::int32_t* env_ids, std::int64_t count) const {
  nb::object special = nb::none();
  for (std::int64_t row = 0; row < count; ++row) {
    const std::int32_t env_id = env_of(env_ids, row);
    const Slot& slot = desk_.slot(env_id);
    if (slot.kind == rows::kGoodRow && slot.reply_bytes == 0) continue;
    if (slot.kind == rows::kLostRow) {
      for (const RowColumn& column : obs_) column.clear_row(env_id);
    }
    if (special.is_none()) special = nb::list();
    nb::cast<nb::list>(special).append(nb::make_tuple(row, env_id, slot.kind, slot.reply_bytes));
  }
  return special;
}

void BoardBatches::add_numbers(PyObject* tuple, Py_ssize_t first, const std::int32_t* env_ids, std::int64_t count) const {
  auto* reward = add_column<double>(tuple, first, NPY_FLOAT64, count);
  auto* terminated = add_column<bool>(tuple, first + 1, NPY_BOOL, count);
  auto* truncated = add_column<bool>(tuple, first + 2, NPY_BOOL, count);
  if (env_ids == nullptr) {
    PyTuple_SET_ITEM(tuple, first + 3, Py_NewRef(whole_ids_.ptr()));
  } else {
    auto* ids = add_column<std::int32_t>(tuple, first + 3, NPY_INT32, count);
    std::memcpy(ids, env_ids, static_cast<std::size_t>(count) * sizeof(std::int32_t));
  }
  auto* elapsed_step = add_column<std::int32_t>(tuple, first + 4, NPY_INT32, count);
  for (std::int64_t row = 0; row < count; ++row) {
    const Slot& slot = desk_.slot(env_of(env_ids, row));
    reward[row] = slot.reward;
    terminated[row] = slot.terminated != 0;
    truncated[row] = slot.truncated != 0;
    elapsed_step[row] = slot.elapsed_step;
  }
}

PyObject* BoardBatches::unpack_info(const std::int32_t* env_ids, std::int64_t count, bool is_final) const {
  const auto mask_of = [&](std::int64_t row) {
    const Slot& slot = desk_.slot(env_of(env_ids, row));
    return is_final ? slot.final_mask : slot.info_mask;
  };
  std::uint64_t any = 0;
  for (std::int64_t row = 0; row < count; ++row) any |= mask_of(row);
  if (any == 0) return Py_NewRef(Py_None);
  struct Row {
    const char* bytes;
    std::uint64_t mask;
  };
  const std::int64_t half = info_.row_bytes() / 2;
  return schema_.unpack(
      count, [&](std::int64_t row) { return Row{info_.row(env_of(env_ids, row)) + (is_final ? half : 0), mask_of(row)}; });
}

}  // namespace envfleet::bindings
