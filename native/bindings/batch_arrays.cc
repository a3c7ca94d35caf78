#include "batch_arrays.h"

namespace envfleet::bindings {

namespace {

constexpr const char* kCapsuleName = "envfleet.batch";

void release_buffer(PyObject* capsule) {
  engine::BufferPool::release(static_cast<engine::BatchBuffer*>(PyCapsule_GetPointer(capsule, kCapsuleName)));
}

}  // namespace

BatchArrays::BatchArrays(const engine::BatchLayout& layout, PyObject* whole_ids)
    : env_id_column_(layout.env_id()), whole_ids_(Py_NewRef(whole_ids)) {
  for (const engine::ColumnLayout& column : layout.columns) {
    Column made{PyArray_DescrFromType(numpy_type(column.dtype)), 1, {}};
    if (column.array != nullptr) {
      made.ndim = 1 + column.array->ndim;
      for (int axis = 0; axis < column.array->ndim; ++axis) made.shape[axis + 1] = column.array->shape[axis];
    }
    columns_.push_back(made);
  }
}

BatchArrays::~BatchArrays() {
  for (Column& column : columns_) Py_DECREF(column.descriptor);
  Py_DECREF(whole_ids_);
}

nanobind::object page_locked_batch(nanobind::list arrays) {
  PyObject* owner = nullptr;
  nanobind::list offsets;
  engine::BatchBuffer* buffer = nullptr;
  for (nanobind::handle array : arrays) {
    std::int64_t offset = -1;
    auto* raw = reinterpret_cast<PyArrayObject*>(array.ptr());
    PyObject* capsule = PyArray_Check(array.ptr()) ? PyArray_BASE(raw) : nullptr;
    if (capsule != nullptr && owner == nullptr && PyCapsule_IsValid(capsule, kCapsuleName)) {
      owner = capsule;
      buffer = static_cast<engine::BatchBuffer*>(PyCapsule_GetPointer(capsule, kCapsuleName));
    }
    if (capsule != nullptr && capsule == owner) offset = PyArray_BYTES(raw) - static_cast<char*>(buffer->data());
    offsets.append(offset);
  }
  if (buffer == nullptr) return nanobind::none();
  return nanobind::make_tuple(reinterpret_cast<std::uintptr_t>(buffer->data()), buffer->num_bytes(), buffer->lock_pages(),
                              offsets);
}

PyObject* BatchArrays::wrap(engine::BatchBuffer* buffer, PyObject* last) const {
  const auto num_columns = static_cast<Py_ssize_t>(columns_.size());
  PyObject* capsule = PyCapsule_New(buffer, kCapsuleName, release_buffer);
  if (capsule == nullptr) {
    engine::BufferPool::release(buffer);
    Py_DECREF(last);
    return nullptr;
  }
  PyObject* tuple = PyTuple_New(num_columns + 1);
  if (tuple == nullptr) {
    Py_DECREF(capsule);
    Py_DECREF(last);
    return nullptr;
  }
  PyTuple_SET_ITEM(tuple, num_columns, last);
  const npy_intp num_rows = buffer->num_rows;
  for (Py_ssize_t i = 0; i < num_columns; ++i) {
    if (i == env_id_column_ && buffer->is_whole) {
      PyTuple_SET_ITEM(tuple, i, Py_NewRef(whole_ids_));
      continue;
    }
    const Column& column = columns_[i];
    npy_intp shape[ENVFLEET_MAX_NDIM + 1];
    shape[0] = num_rows;
    for (int axis = 1; axis < column.ndim; ++axis) shape[axis] = column.shape[axis];
    Py_INCREF(column.descriptor);  // NewFromDescr takes it over
    PyObject* array = PyArray_NewFromDescr(&PyArray_Type, column.descriptor, column.ndim, shape, nullptr, buffer->column(i),
                                           NPY_ARRAY_CARRAY, nullptr);
    if (array == nullptr || PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(array), Py_NewRef(capsule)) < 0) {
      Py_XDECREF(array);
      Py_DECREF(tuple);
      Py_DECREF(capsule);
      return nullptr;
    }
    PyTuple_SET_ITEM(tuple, i, array);
  }
  Py_DECREF(capsule);
  return tuple;
}

}  // namespace envfleet::bindings
