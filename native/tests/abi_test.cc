// The border between engine and env: what is thrown on either side of it, and versions that differ.
#include <cstring>
#include <type_traits>

#include "engine/numpy_host.h"
#include "tests/test_envs.h"

using namespace test;

namespace {

// What an env type may have, each throwing when `thrower` is the hook's number.
struct AllHooks {
  static inline std::atomic<int> thrower{0};
  static void reach(int hook) {
    if (thrower == hook) throw hook;  // no std::exception
  }

  static void spec(const Config&, Spec& spec) {
    reach(1);
    spec.observation(envfleet::box<std::int32_t>({2}));
    spec.action(envfleet::discrete(2));
  }
  AllHooks() { reach(2); }
  void reset(Rng&, Out& out) {
    out.obs<std::int32_t>()[0] = 7;
    reach(3);
  }
  void step(int, Out& out) {
    out.obs<std::int32_t>()[0] = 7;
    reach(4);
    reach(5);
    out.terminated = true;
  }
  static constexpr int lanes = 2;
  static bool step_lanes(AllHooks* const*, const std::int32_t*, envfleet::LaneOut<lanes>& out) {
    CHECK_EQUAL(out.obs<std::int32_t>()[0], 0);
    CHECK_EQUAL(out.obs<std::int32_t>()[3], 0);
    out.obs<std::int32_t>()[0] = 7;
    reach(5);
    out.terminated[0] = out.terminated[1] = 1;
    return true;
  }
  void observe(Out&) { reach(6); }
  template <class Visitor>
  void fields(Visitor& visit) {
    visit("value", value);
    reach(7);
  }
  void fields_changed() { reach(8); }
  void render(envfleet::Frame& frame) {
    reach(9);
    frame.resize(1, 1);
  }
  bool value = false;
};

struct ThrowsInParams : AllHooks {
  static Params params() { throw std::runtime_error("no list"); }
};

std::shared_ptr<Engine> make_all_hooks(const EngineOptions& options) {
  return Engine::make(type_of<AllHooks>(), options, {nullptr});
}

}  // namespace

// An entry of the table that may throw has another type, and cannot be assigned.
static_assert(std::is_nothrow_invocable_v<decltype(ef_env_type::describe), const ef_value*, ef_error*>);
static_assert(
    std::is_nothrow_invocable_v<decltype(ef_env_type::step_range), void*, const ef_rows*, std::int64_t, std::int64_t>);
static_assert(!std::is_assignable_v<decltype((std::declval<ef_env_type&>().seed)),
                                    void (*)(void*, std::int32_t, const std::uint32_t*)>);

TEST(every_entry_of_the_table_is_there) {
  const ef_env_type& type = type_of<AllHooks>();
  const char* functions = reinterpret_cast<const char*>(&type.describe);
  const char* end = reinterpret_cast<const char*>(&type + 1);
  for (; functions < end; functions += sizeof(void*)) {
    void* function = nullptr;
    std::memcpy(&function, functions, sizeof(function));
    CHECK(function != nullptr);
  }
}

TEST(rows_of_hooks_that_throw) {
  for (const ef_autoreset autoreset : {EF_NEXT_STEP, EF_SAME_STEP, EF_DISABLED}) {
    for (const int num_threads : {1, 3}) {
      for (const int hook : {3, 4, 5, 6}) {
        const auto engine = make_all_hooks(options_of(5, 5, num_threads, autoreset));
        for (int round = 0; round < 20; ++round) {
          AllHooks::thrower = 0;
          for (int id = 0; id < 5; ++id) {
            if (engine->phases()[id] == EF_BROKEN) engine->rebuild(id, EF_UNSTARTED);
          }
          Batch started(engine->run(Request::reset, nullptr, 5));
          CHECK(!engine->has_faults());
          AllHooks::thrower = hook;
          const Request request = hook == 6 ? Request::observe : Request::step;
          Batch batch(engine->run(request, nullptr, 5));
          AllHooks::thrower = 0;
          const auto faults = engine->faults_of(*batch);
          // One thread runs the lanes {0, 1} and {2, 3}, and env 4 in a step of its own; several may cut the rows
          // anywhere, and step() stands in for step_lanes(). A reset is due in same_step alone.
          if (hook == 4 && num_threads > 1) {
            CHECK(!faults.empty());
          } else {
            const bool is_due = hook != 3 || autoreset == EF_SAME_STEP;
            CHECK_EQUAL(faults.size(), !is_due ? 0u : hook == 4 ? 1u : 5u);
          }
          for (const Fault& fault : faults) {
            CHECK(fault.what == "threw something that is not a std::exception");
            CHECK_EQUAL(fault.method, hook == 3 ? EF_IN_RESET : hook == 6 ? EF_IN_OBSERVE : EF_IN_STEP);
            CHECK_EQUAL(engine->phases()[fault.env_id], EF_BROKEN);
            const auto* row = static_cast<std::int32_t*>(batch->rows().obs[0]) + 2 * fault.env_id;
            CHECK_EQUAL(row[0], 0);
            if (request == Request::step) CHECK_EQUAL(batch->rows().terminated[fault.env_id], 0);
          }
        }
      }
    }
  }
}

TEST(calls_between_batches_that_throw) {
  AllHooks::thrower = 1;
  CHECK_THROWS(make_all_hooks(options_of(2, 2, 1)), envfleet::engine::FleetError, "not a std::exception");
  AllHooks::thrower = 2;
  CHECK_THROWS(make_all_hooks(options_of(2, 2, 1)), envfleet::engine::FleetError, "not a std::exception");
  AllHooks::thrower = 0;
  const auto engine = make_all_hooks(options_of(2, 2, 1));
  Batch started(engine->run(Request::reset, nullptr, 2));
  const std::string state = engine->get_state(0);
  const auto ignore = [](auto...) {};
  AllHooks::thrower = 7;
  CHECK_THROWS(engine->get_state(0), envfleet::engine::FleetError, "not a std::exception");
  CHECK_THROWS(engine->fleet().visit_fields(0, ignore), envfleet::engine::FleetError, "not a std::exception");
  AllHooks::thrower = 9;
  CHECK_THROWS(engine->fleet().render(0, ignore), envfleet::engine::FleetError, "not a std::exception");
  CHECK_EQUAL(engine->phases()[0], EF_RUNNING);
  AllHooks::thrower = 8;
  CHECK_THROWS(engine->set_state(0, state.data(), state.size()), envfleet::engine::FleetError, "not a std::exception");
  CHECK_EQUAL(engine->phases()[0], EF_BROKEN);
  AllHooks::thrower = 2;
  CHECK_THROWS(engine->rebuild(0, EF_UNSTARTED), envfleet::engine::FleetError, "not a std::exception");
  // The env is not there now.
  AllHooks::thrower = 0;
  CHECK_THROWS(engine->get_state(0), envfleet::engine::FleetError, "could not be rebuilt");
  CHECK_THROWS(engine->set_state(0, state.data(), state.size()), envfleet::engine::FleetError, "could not be rebuilt");
  CHECK_EQUAL(engine->phases()[0], EF_BROKEN);
  engine->rebuild(0, EF_UNSTARTED);
  engine->set_state(0, state.data(), state.size());
  CHECK_EQUAL(engine->phases()[0], EF_RUNNING);
}

TEST(callbacks_that_throw) {
  const auto engine = make_all_hooks(options_of(1, 1, 1));
  const auto fail = [](auto...) { throw std::runtime_error("no room"); };
  CHECK_THROWS(engine->fleet().visit_fields(0, fail), std::runtime_error, "no room");
  CHECK_THROWS(engine->fleet().render(0, fail), std::runtime_error, "no room");
}

TEST(a_bool_of_a_state_is_zero_or_one) {
  const auto engine = make_all_hooks(options_of(1, 1, 1));
  std::string state = engine->get_state(0);
  state.back() = 2;
  CHECK_THROWS(engine->set_state(0, state.data(), state.size()), envfleet::engine::FleetError, "no valid bool");
}

TEST(params_that_throw) {
  const ef_env_type& type = type_of<ThrowsInParams>();
  CHECK_EQUAL(type.num_params, 0);
  CHECK_THROWS(envfleet::engine::describe(type, nullptr), envfleet::engine::FleetError, "params(): no list");
}

TEST(long_texts_are_cut_between_characters) {
  ef_error error{};
  for (const char* character : {"x", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"}) {
    for (int offset = 0; offset < 4; ++offset) {
      std::string text(offset, 'x');
      while (text.size() < 2000) text += character;
      envfleet::detail::write_error(&error, text.c_str());
      const std::string got = error.message;
      CHECK(got.size() < sizeof(error.message) && got.size() + 4 >= sizeof(error.message) - 3);
      CHECK(got.ends_with("..."));
      CHECK_EQUAL((got.size() - 3 - offset) % std::strlen(character), 0u);
      CHECK(text.starts_with(got.substr(0, got.size() - 3)));
    }
  }
  envfleet::detail::write_error(&error, std::string(5000, '\x80').c_str());  // no character begins anywhere
  CHECK(std::strlen(error.message) > 1000);
  const std::string fits(sizeof(error.message) - 1, 'y');
  envfleet::detail::write_error(&error, fits.c_str());
  CHECK(fits == error.message);
}

TEST(an_env_refuses_an_engine_of_another_version) {
  const ef_env_type& type = type_of<AllHooks>();
  std::uint8_t phase = EF_UNSTARTED;
  const ef_value* const configs[] = {nullptr};
  ef_host host = *envfleet::engine::numpy_host();
  ef_fleet_options options{};
  options.num_envs = options.num_configs = 1;
  options.configs = configs;
  options.phases = &phase;
  options.host = &host;
  ef_error error{};
  host.abi_version += 1;
  CHECK(type.create(&options, &error) == nullptr);
  CHECK(std::strstr(error.message, "compile it again") != nullptr);
  host.abi_version -= 1;
  host.layout += 8;
  CHECK(type.create(&options, &error) == nullptr);
  CHECK(std::strstr(error.message, "structs of other sizes") != nullptr);
  host.layout -= 8;
  void* fleet = type.create(&options, &error);
  CHECK(fleet != nullptr);
  type.destroy(fleet);
}

TEST(spaces_that_do_not_fit_their_type) {
  const auto describe = [](auto&& declare) {
    Spec spec;
    declare(spec);
  };
  constexpr std::int64_t kInt32 = std::int64_t{1} << 31, kInt64 = std::numeric_limits<std::int64_t>::max();
  for (const auto& [count, start] : {std::pair{kInt32 + 1, std::int64_t{0}},
                                     {std::int64_t{2}, kInt32 - 1},
                                     {std::int64_t{1}, -kInt32 - 1},
                                     {kInt64, kInt64},
                                     {kInt64, -kInt32}}) {
    CHECK_THROWS(describe([&](Spec& spec) { spec.action(envfleet::discrete(count, start)); }), std::invalid_argument,
                 "fit int32");
  }
  describe([&](Spec& spec) { spec.action(envfleet::discrete(2 * kInt32, -kInt32)); });
  describe([&](Spec& spec) { spec.observation(envfleet::discrete(kInt64, -kInt32)); });
  CHECK_THROWS(describe([&](Spec& spec) { spec.observation(envfleet::discrete(2, kInt64)); }), std::invalid_argument,
               "fit int64");
  CHECK_THROWS(describe([&](Spec& spec) { spec.action(envfleet::multi_discrete({2, kInt32 + 1})); }), std::invalid_argument,
               "fit int32");
  CHECK_THROWS(describe([&](Spec& spec) { spec.action(envfleet::multi_discrete({2, 0})); }), std::invalid_argument,
               "no values");
  CHECK_THROWS(describe([&](Spec& spec) { spec.observation(envfleet::box<float>({kInt32, kInt32})); }),
               std::invalid_argument, "2**40");
  CHECK_THROWS(describe([&](Spec& spec) { spec.max_episode_steps(-1); }), std::invalid_argument, "max_episode_steps >= 0");
}

TEST(frames_have_a_size) {
  envfleet::Frame frame;
  CHECK_THROWS(frame.resize(-1, 4), std::invalid_argument, "got -1 x 4");
  CHECK_THROWS(frame.resize(0, 4), std::invalid_argument, "got 0 x 4");
  CHECK_THROWS(envfleet::detail::check_frame(frame), std::invalid_argument, "got 0 x 0 with 0 bytes");
  frame.resize(3, 4);
  envfleet::detail::check_frame(frame);
  frame.rgb.pop_back();
  CHECK_THROWS(envfleet::detail::check_frame(frame), std::invalid_argument, "got 3 x 4 with 35 bytes");
}

TEST(numpys_functions_before_an_env_is_constructed) {
  const ef_host* lent = envfleet::detail::engine_host.exchange(nullptr);
  CHECK_THROWS(envfleet::numpy::sin(1.0), std::logic_error, "before an env was constructed");
  envfleet::detail::engine_host = lent;
}
