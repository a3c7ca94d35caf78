// What a NativePool does between batches, and what it tells of itself.
#include <algorithm>

#include "caller.h"
#include "fields_access.h"
#include "given_arrays.h"
#include "native_pool.h"
#include "timeouts.h"

namespace nb = nanobind;

namespace envfleet::bindings {

// A batch in order that is late. False: it is not over within timeout_ns.
bool NativePool::drop_late_batch(std::int64_t timeout_ns) {
  if (!engine_->has_started()) return true;
  engine::BatchBuffer* late =
      wait_in_slices(guard_, timeout_ns, [&](std::int64_t slice) { return engine_->finish(slice, false); });
  if (late == nullptr) return false;
  // At once: Ctrl-C may come before the rest is through, and a recv() would wait for these rows for ever.
  mark(late->is_whole ? nullptr : late->env_ids(), late->num_rows, 0);
  engine_->take_faults(late->is_whole ? nullptr : late->env_ids(), late->num_rows);
  engine::BufferPool::release(late);
  return true;
}

bool NativePool::abandon(double timeout_s) {
  const Scope<PartialCall> call(*this);
  const std::int64_t timeout_ns = to_ns(timeout_s);
  const std::int64_t start = engine::now_ns();
  if (!drop_late_batch(timeout_ns)) return false;
  const std::int64_t rest = timeout_ns < 0 ? -1 : std::max<std::int64_t>(timeout_ns - (engine::now_ns() - start), 0);
  if (!wait_in_slices(guard_, rest, [&](std::int64_t slice) { return engine_->abandon(slice); })) return false;
  std::fill_n(engine_->in_flight(), engine_->options().num_envs, 0);
  engine_->num_in_flight = 0;
  engine_->take_faults(nullptr, 0);
  return true;
}

void NativePool::seed(nb::handle env_ids, nb::handle words) {
  const Scope<PartialCall> call(*this);
  const Ids ids = checked_ids(env_ids);
  const std::uint32_t* data = read_seeds(words, ids.count);
  for (std::int64_t i = 0; i < ids.count; ++i) engine_->seed(ids.data != nullptr ? ids.data[i] : i, data + 4 * i);
}

void NativePool::rebuild(std::int32_t env_id, std::uint8_t phase) {
  const Scope<PartialCall> call(*this);
  check_range(env_id);
  engine_->rebuild(env_id, phase);
}

void NativePool::set_reset_options(std::vector<std::pair<std::string, double>> options) {
  const Scope<PartialCall> call(*this);
  engine_->set_reset_options(std::move(options));
}

nb::bytes NativePool::get_state(std::int32_t env_id) {
  const Scope<PartialCall> call(*this);
  check_range(env_id);
  const std::string state = engine_->get_state(env_id);
  return nb::bytes(state.data(), state.size());
}

void NativePool::set_state(std::int32_t env_id, nb::bytes state) {
  const Scope<PartialCall> call(*this);
  check_range(env_id);
  engine_->set_state(env_id, state.c_str(), static_cast<std::int64_t>(state.size()));
}

nb::tuple NativePool::render(std::int32_t env_id) {
  const Scope<PartialCall> call(*this);
  check_range(env_id);
  nb::tuple drawn;
  engine_->fleet().render(env_id, [&](std::int32_t height, std::int32_t width, const std::uint8_t* rgb) {
    drawn = nb::make_tuple(height, width, nb::bytes(rgb, static_cast<std::size_t>(height) * width * 3));
  });
  return drawn;
}

nb::dict NativePool::get_fields(std::int32_t env_id) {
  const Scope<PartialCall> call(*this);
  check_range(env_id);
  return read_fields(engine_->fleet(), env_id);
}

bool NativePool::set_field(std::int32_t env_id, const std::string& name, nb::handle value) {
  const Scope<PartialCall> call(*this);
  check_range(env_id);
  return write_field(*engine_, env_id, name, value);
}

nb::bytes NativePool::phases() {
  const Scope<PartialCall> call(*this);
  return nb::bytes(engine_->phases(), static_cast<std::size_t>(engine_->options().num_envs));
}

nb::bytes NativePool::in_flight() {
  const Scope<PartialCall> call(*this);
  return nb::bytes(engine_->in_flight(), static_cast<std::size_t>(engine_->options().num_envs));
}

nb::list NativePool::env_statistics() {
  const Scope<PartialCall> call(*this);
  nb::list all;
  for (const engine::EnvTally& own : engine_->tally()) {
    all.append(nb::make_tuple(own.num_steps, own.num_resets, own.num_episodes, own.return_sum, own.return_min,
                              own.return_max, own.length_sum, own.length_min, own.length_max, 0, 0));
  }
  return all;
}

double NativePool::ns_per_step() {
  const Scope<PartialCall> call(*this);
  return engine_->expected_ns(engine::Request::step, 1);
}

}  // namespace envfleet::bindings
