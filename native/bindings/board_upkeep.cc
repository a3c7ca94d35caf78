// What a Board does between batches, what it tells of itself, and its end.
#include <cstring>

#include "board_caller.h"

namespace nb = nanobind;

namespace envfleet::bindings {

using rows::Slot;

namespace {

template <class ByteOf>
nb::bytes bytes_of_envs(std::int32_t num_envs, ByteOf&& byte_of) {
  std::vector<std::uint8_t> all(num_envs);
  for (std::int32_t env_id = 0; env_id < num_envs; ++env_id) all[env_id] = byte_of(env_id);
  return nb::bytes(all.data(), all.size());
}

}  // namespace

void Board::seed(nb::handle env_ids, nb::handle words) {
  const Part part(*this);
  set_checked_ids(env_ids);
  const std::uint32_t* next = read_seeds(words, ids_.count());
  for (const std::int32_t env_id : ids_.list()) {
    Slot& slot = desk_.slot(env_id);
    std::memcpy(slot.seed, next, sizeof(slot.seed));
    slot.has_seed = 1;
    next += 4;
  }
}

void Board::set_request_bytes(std::int32_t env_id, std::uint64_t count) {
  const Part part(*this);
  slot_of(env_id).request_bytes = count;
}

void Board::set_phase(std::int32_t env_id, std::uint8_t phase) {
  const Part part(*this);
  slot_of(env_id).phase = phase;
}

bool Board::was_reset(std::int32_t env_id) {
  const Part part(*this);
  return slot_of(env_id).op == rows::kReset;
}

bool Board::has_late_batch() {
  const Part part(*this);
  return !ordered_.empty();
}

std::uint32_t Board::next_schema_version() {
  const Part part(*this);
  return desk_.geometry().header(desk_.base()).schema_version.load() + 1;
}

nb::tuple Board::get_standing(std::int32_t env_id) {
  const Part part(*this);
  const Slot& slot = slot_of(env_id);
  return nb::make_tuple(slot.phase, slot.elapsed_step, slot.has_seed, slot.seed[0], slot.seed[1], slot.seed[2], slot.seed[3],
                        slot.statistics.return_now.get());
}

void Board::set_standing(std::int32_t env_id, std::uint8_t phase, std::int32_t elapsed_step, std::uint32_t has_seed,
                         std::uint32_t seed_0, std::uint32_t seed_1, std::uint32_t seed_2, std::uint32_t seed_3,
                         double return_now) {
  const Part part(*this);
  Slot& slot = slot_of(env_id);
  slot.phase = phase;
  slot.elapsed_step = elapsed_step;
  slot.has_seed = has_seed;
  const std::uint32_t seed[] = {seed_0, seed_1, seed_2, seed_3};
  std::memcpy(slot.seed, seed, sizeof(seed));
  slot.statistics.return_now = return_now;
}

void Board::publish_schema(nb::list entries, std::uint64_t count) {
  const Part part(*this);
  batches_.load_schema(entries);
  rows::Header& header = desk_.geometry().header(desk_.base());
  const std::uint32_t version = header.schema_version.load(std::memory_order_relaxed) + 1;
  if (version > rows::kMaxSchemas) throw nb::value_error("more schemas than a mask has bits");
  header.schema_bytes[version] = count;
  header.schema_version.store(version, std::memory_order_release);
}

void Board::revive(std::int32_t worker) {
  const Part part(*this);
  desk_.revive(worker);
}

nb::bytes Board::phases() {
  const Part part(*this);
  return bytes_of_envs(num_envs_, [&](std::int32_t env_id) { return desk_.slot(env_id).phase; });
}

nb::bytes Board::in_flight() {
  const Part part(*this);
  return bytes_of_envs(num_envs_, [&](std::int32_t env_id) { return desk_.is_in_flight(env_id) ? 1 : 0; });
}

// Counts alone, so a call() that was interrupted is not waited for.
nb::list Board::env_statistics() {
  const PartialCall part(guard_);
  nb::list all;
  for (std::int32_t env_id = 0; env_id < num_envs_; ++env_id) {
    const rows::Statistics& own = desk_.slot(env_id).statistics;
    all.append(nb::make_tuple(own.num_steps.get(), own.num_resets.get(), own.num_episodes.get(), own.return_sum.get(),
                              own.return_min.get(), own.return_max.get(), own.length_sum.get(), own.length_min.get(),
                              own.length_max.get(), own.busy_ns.get(), own.slowest_ns.get()));
  }
  return all;
}

nb::list Board::worker_statistics() {
  const PartialCall part(guard_);
  nb::list all;
  for (std::int32_t worker = 0; worker < desk_.geometry().num_workers; ++worker) {
    const rows::WorkerWords& words = desk_.geometry().worker(desk_.base(), worker);
    all.append(nb::make_tuple(words.busy_ns.get(), words.wait_ns.get()));
  }
  return all;
}

void Board::interrupt() {
  desk_.stop();
  desk_.ring();
}

}  // namespace envfleet::bindings
