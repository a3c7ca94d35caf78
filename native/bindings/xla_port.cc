#include "bindings/xla_port.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <string>

#include "bindings/bindings.h"
#include "bindings/numpy_arrays.h"
#include "bindings/python_calls.h"
#include "envfleet/spec.h"

namespace nb = nanobind;

namespace envfleet::xla {

using bindings::GilAcquire;
using bindings::NativePool;
using engine::BatchBuffer;

// ---------------------------------------------------------------------------------------------------------- registry

namespace {

class Registry {
 public:
  // Leaked: a program may look for its pool while the process exits.
  static Registry& instance() {
    static auto* registry = new Registry();
    return *registry;
  }
  void add(const std::shared_ptr<Port>& port) {
    const std::lock_guard lock(mutex_);
    port->token = ++last_token_;
    ports_[port->token] = port;
  }
  std::shared_ptr<Port> find(std::int64_t token) {
    const std::lock_guard lock(mutex_);
    const auto found = ports_.find(token);
    return found == ports_.end() ? nullptr : found->second.lock();
  }
  void remove(std::int64_t token) {
    const std::lock_guard lock(mutex_);
    ports_.erase(token);
  }

 private:
  std::mutex mutex_;
  std::int64_t last_token_ = 0;
  std::map<std::int64_t, std::weak_ptr<Port>> ports_;
};

// A Port* of the table is the address of a Holder: it shares the ownership for one call.
struct Holder {
  std::shared_ptr<Port> port;
};

Port& port_of(Port* holder) { return *reinterpret_cast<Holder*>(holder)->port; }

void set_message(Message& message, const std::string& text) {
  std::size_t count = std::min(text.size(), sizeof(message.text) - 1);
  // Not in the middle of a character of UTF-8.
  while (count < text.size() && count > 0 && (static_cast<unsigned char>(text[count]) & 0xC0) == 0x80) --count;
  std::memcpy(message.text, text.data(), count);
  message.text[count] = 0;
}

}  // namespace

Port::~Port() {
  Registry::instance().remove(token);
  const GilAcquire gil;
  if (!gil.is_held()) {
    native_object.release();
    calls.release();
    return;
  }
  native_object.reset();
  calls.reset();
}

LockedArray::~LockedArray() {
  lock.reset();  // before the memory is freed
  const GilAcquire gil;
  if (gil.is_held()) Py_XDECREF(array);
}

Batch::~Batch() {
  if (buffer != nullptr) engine::BufferPool::release(buffer);
  if (arrays == nullptr) return;
  const GilAcquire gil;
  if (gil.is_held()) Py_DECREF(arrays);
}

namespace {

// ------------------------------------------------------------------------------------------------- through Python

// The exception in flight as "ActionError: step() expected ...".
std::string describe(nb::python_error& error) {
  // Text that decoding broken bytes has left is no UTF-8.
  const auto text = nb::cast<nb::bytes>(nb::str(error.value()).attr("encode")("utf-8", "backslashreplace"));
  return nb::cast<std::string>(error.type().attr("__name__")) + ": " + std::string(text.c_str(), text.size());
}

nb::object to_array(const Array& array, std::int64_t num_rows) {
  npy_intp shape[2] = {num_rows, num_rows == 0 ? 0 : array.num_elements / num_rows};
  nb::object made = bindings::checked(PyArray_SimpleNew(2, shape, bindings::numpy_type(array.dtype)));
  std::memcpy(PyArray_DATA(bindings::as_array(made)), array.data, PyArray_NBYTES(bindings::as_array(made)));
  return made;
}

// (leaves, env_ids): copies, each leaf with one row per env.
nb::tuple to_python(const Port& port, const Actions& actions) {
  const auto num_rows = actions.env_ids != nullptr ? actions.num_env_ids : static_cast<std::int64_t>(port.all_ids.size());
  nb::list leaves;
  for (std::int64_t i = 0; i < actions.num_leaves; ++i) leaves.append(to_array(actions.leaves[i], num_rows));
  if (actions.env_ids == nullptr) return nb::make_tuple(leaves, nb::none());
  const Array ids{actions.env_ids, EF_INT32, actions.num_env_ids, false};
  return nb::make_tuple(leaves, to_array(ids, actions.num_env_ids).attr("reshape")(-1));
}

// The array whose memory this one is a part of, or null if it has its own.
PyObject* shared_owner(PyArrayObject* array) {
  PyObject* owner = reinterpret_cast<PyObject*>(array);
  for (PyObject* base = PyArray_BASE(array); base != nullptr && PyArray_Check(base);
       base = PyArray_BASE(reinterpret_cast<PyArrayObject*>(base))) {
    owner = base;
  }
  return owner == reinterpret_cast<PyObject*>(array) ? nullptr : owner;
}

Batch* to_batch(nb::object arrays) {
  auto batch = std::make_unique<Batch>();
  for (nb::handle own : nb::cast<nb::list>(arrays)) {
    PyArrayObject* array = bindings::as_plain_array(own.ptr());
    const std::int32_t dtype = array == nullptr ? -1 : bindings::dtype_of_array(array);
    if (dtype < 0) throw nb::type_error("expected contiguous numeric arrays as the columns of a batch");
    batch->columns.push_back({PyArray_DATA(array), dtype, PyArray_SIZE(array), false});
    batch->owners.push_back(shared_owner(array));
  }
  batch->arrays = arrays.release().ptr();
  return batch.release();
}

// Runs body() with the GIL. Its exceptions become the message, and the result is then `failed`.
template <class Result, class Body>
Result in_python(Message& message, Result failed, Body&& body) noexcept {
  const GilAcquire gil;
  if (!gil.is_held()) {
    set_message(message, "the Python interpreter has ended; expected computations to end before it");
    return failed;
  }
  try {
    return bindings::python(body);
  } catch (nb::python_error& error) {
    const bool is_interrupt = error.matches(PyExc_KeyboardInterrupt);
    try {
      set_message(message, describe(error));
    } catch (...) {
      set_message(message, "an exception that cannot be described");
    }
    // jax raises an Exception for every failure, which a program may handle: Ctrl-C is raised once more, after that.
    if (is_interrupt) PyErr_SetInterrupt();
  } catch (const std::exception& error) {
    set_message(message, error.what());
  }
  return failed;
}

// -------------------------------------------------------------------------------------------------- native pools

Batch* wrap(const Port& port, BatchBuffer* buffer) {
  auto batch = std::make_unique<Batch>();
  batch->buffer = buffer;
  const engine::BatchLayout& layout = port.native->layout();
  for (std::size_t i = 0; i < port.columns.size(); ++i) {
    const std::int64_t column = port.columns[i];
    const bool is_whole_id = buffer->is_whole && column == layout.env_id();
    batch->columns.push_back({is_whole_id ? port.all_ids.data() : buffer->column(column), layout.columns[column].dtype,
                              port.num_elements[i] * buffer->num_rows, false});
  }
  return batch.release();
}

Batch* recv_in_python(Port& port, Message& message) {
  return in_python<Batch*>(message, nullptr, [&] { return to_batch(port.calls.attr("recv")()); });
}

bool is_plain(const Port& port, const Actions& actions) {
  if (port.native == nullptr || actions.num_leaves != 1) return false;
  const auto num_rows = actions.env_ids != nullptr ? actions.num_env_ids : static_cast<std::int64_t>(port.all_ids.size());
  return num_rows > 0 && actions.leaves[0].num_elements == num_rows * port.row_elements;
}

// The action array of a call, widened if jax has narrowed it: without jax_enable_x64 it has no float64. A float32 that is a
// bound of the space stays that bound, on whichever side of it the rounding went.
class PlainActions {
 public:
  PlainActions(const Port& port, const Actions& actions) {
    const Array& leaf = actions.leaves[0];
    const std::int64_t count = actions.env_ids != nullptr ? actions.num_env_ids : std::ssize(port.all_ids);
    given_ = {leaf.data, leaf.dtype, actions.env_ids, count};
    const ef_array& space = port.native->action_space();
    if (leaf.dtype != EF_FLOAT32 || space.dtype != EF_FLOAT64) return;
    const auto* values = static_cast<const float*>(leaf.data);
    wide_.resize(static_cast<std::size_t>(leaf.num_elements));
    for (std::int64_t i = 0; i < leaf.num_elements; ++i) {
      wide_[i] = values[i];
      if (space.num_bounds == 0) continue;
      const std::int64_t bound = i % port.row_elements % space.num_bounds;
      if (values[i] == static_cast<float>(space.low[bound])) wide_[i] = space.low[bound];
      if (values[i] == static_cast<float>(space.high[bound])) wide_[i] = space.high[bound];
    }
    given_.data = wide_.data();
    given_.dtype = EF_FLOAT64;
  }
  const engine::GivenActions& get() const { return given_; }

 private:
  engine::GivenActions given_;
  std::vector<double> wide_;
};

// --------------------------------------------------------------------------------------------------------- table

Port* acquire(std::int64_t token) {
  std::shared_ptr<Port> port = Registry::instance().find(token);
  return port == nullptr ? nullptr : reinterpret_cast<Port*>(new Holder{std::move(port)});
}

void release(Port* holder) { delete reinterpret_cast<Holder*>(holder); }

bool send(Port* holder, const Actions* actions, Message* message) {
  Port& port = port_of(holder);
  if (is_plain(port, *actions)) {
    const PlainActions plain(port, *actions);
    if (port.native->send_without_gil(plain.get())) return true;
  }
  return in_python(*message, false, [&] {
    port.calls.attr("send")(*to_python(port, *actions));
    return true;
  });
}

Batch* recv(Port* holder, Message* message) {
  Port& port = port_of(holder);
  if (port.native != nullptr) {
    BatchBuffer* buffer = port.native->recv_without_gil().value_or(nullptr);
    if (buffer != nullptr) return wrap(port, buffer);
  }
  return recv_in_python(port, *message);
}

Batch* step(Port* holder, const Actions* actions, Message* message) {
  Port& port = port_of(holder);
  if (is_plain(port, *actions)) {
    const PlainActions plain(port, *actions);
    const NativePool::Received received = port.native->step_without_gil(plain.get());
    if (received) return *received != nullptr ? wrap(port, *received) : recv_in_python(port, *message);
  }
  return in_python<Batch*>(*message, nullptr, [&] { return to_batch(port.calls.attr("step")(*to_python(port, *actions))); });
}

const Array* columns(const Batch* batch, std::int64_t* count) {
  *count = std::ssize(batch->columns);
  return batch->columns.data();
}

// Locks the memory in which Python workers write their rows, once. Returns null where it cannot be locked.
std::shared_ptr<LockedArray> lock_shared_rows(Port& port, PyObject* owner) {
  const std::lock_guard guard(port.locks_mutex);
  std::shared_ptr<LockedArray>& locked = port.locks[owner];
  if (locked == nullptr) {
    locked = std::make_shared<LockedArray>();
    {
      const GilAcquire gil;
      if (!gil.is_held()) return nullptr;
      locked->array = Py_NewRef(owner);
    }
    auto* array = reinterpret_cast<PyArrayObject*>(owner);
    locked->lock->lock(PyArray_DATA(array), static_cast<std::size_t>(PyArray_NBYTES(array)));
  }
  return locked->lock->is_locked() ? locked : nullptr;
}

bool lock_pages(Port* holder, Batch* batch) {
  Port& port = port_of(holder);
  if (batch->buffer != nullptr) {
    const bool is_locked = batch->buffer->lock_pages();
    for (Array& column : batch->columns) column.is_locked = is_locked && column.data != port.all_ids.data();
    return false;
  }
  // Below this, a copy to page-locked memory costs less than a lock and a wait.
  constexpr std::int64_t kSmall = 16 * 1024;
  bool has_shared_rows = false;
  for (std::size_t i = 0; i < batch->columns.size(); ++i) {
    Array& column = batch->columns[i];
    if (batch->owners[i] == nullptr || column.num_elements * size_of(column.dtype) < kSmall) continue;
    if (auto locked = lock_shared_rows(port, batch->owners[i])) {
      column.is_locked = has_shared_rows = true;
      batch->locks.push_back(std::move(locked));
    }
  }
  return has_shared_rows;
}

void release_batch(Batch* batch) { delete batch; }

const PoolFunctions functions{kPoolFunctionsVersion, acquire, release, send, recv, step, columns, lock_pages, release_batch};

// ------------------------------------------------------------------------------------------------------- bindings

std::int64_t column_of(const engine::BatchLayout& layout, const std::string& source, std::int64_t index) {
  if (source == "obs") return layout.obs(index);
  if (source == "reward") return layout.reward();
  if (source == "terminated") return layout.terminated();
  if (source == "truncated") return layout.truncated();
  if (source == "env_id") return layout.env_id();
  if (source == "elapsed_step") return layout.elapsed_step();
  if (source == "info") return layout.info(index);
  if (source == "final_obs" && layout.with_finals) return layout.final_obs(index);
  throw nb::value_error("a batch has no such column");
}

std::shared_ptr<Port> make_port(std::int64_t num_envs, nb::object calls, nb::object native, nb::list columns) {
  auto port = std::make_shared<Port>();
  port->calls = std::move(calls);
  port->all_ids.resize(static_cast<std::size_t>(num_envs));
  std::iota(port->all_ids.begin(), port->all_ids.end(), 0);
  if (!native.is_none()) {
    port->native = nb::cast<NativePool*>(native);
    port->native_object = std::move(native);
    const engine::BatchLayout& layout = port->native->layout();
    for (nb::handle own : columns) {
      const auto pair = nb::cast<nb::tuple>(own);
      const std::int64_t column = column_of(layout, nb::cast<std::string>(pair[0]), nb::cast<std::int64_t>(pair[1]));
      port->columns.push_back(column);
      const engine::ColumnLayout& found = layout.columns.at(static_cast<std::size_t>(column));
      port->num_elements.push_back(found.row_bytes / size_of(found.dtype));
    }
    port->row_elements = 1;
    const ef_array& action = port->native->action_space();
    for (int axis = 0; axis < action.ndim; ++axis) port->row_elements *= action.shape[axis];
  }
  Registry::instance().add(port);
  return port;
}

}  // namespace

}  // namespace envfleet::xla

namespace envfleet::bindings {

void bind_xla_port(nb::module_& module) {
  nb::class_<xla::Port>(module, "XlaPort")
      .def_prop_ro("token", [](const xla::Port& port) { return port.token; })
      .def_prop_ro("is_native", [](const xla::Port& port) { return port.native != nullptr; });
  module.def("make_xla_port", &xla::make_port, nb::arg("num_envs"), nb::arg("calls"), nb::arg("native").none(),
             nb::arg("columns"));
  // The address of the table of functions, for the library of the handlers.
  module.def("xla_pool_functions", [] { return reinterpret_cast<std::uintptr_t>(&xla::functions); });
}

}  // namespace envfleet::bindings
