#include "game.h"

#include <cstring>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <vector>

namespace envfleet::procgen {

namespace {

constexpr std::int32_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();
constexpr int kMaxStateBytes = 1 << 20;  // as in the package

enum DistributionMode : std::int32_t { kEasy = 0, kHard = 1, kExtreme = 2, kMemory = 10 };

struct GameFacts {
  std::string_view name;
  std::int32_t time_limit;
  bool has_extreme, has_memory;
  std::int32_t exploration_seed;  // 0: no such mode
};

constexpr GameFacts kGames[] = {
    {"bigfish", 6000, false, false, 0},
    {"bossfight", 4000, false, false, 0},
    {"caveflyer", 1000, false, true, 1259048185},
    {"chaser", 1000, true, false, 0},
    {"climber", 1000, false, false, 1561126160},
    {"coinrun", 1000, false, false, 1949448038},
    {"dodgeball", 1000, true, true, 0},
    {"fruitbot", 1000, false, false, 0},
    {"heist", 1000, false, true, 876640971},
    {"jumper", 1000, false, true, 1434825276},
    {"leaper", 500, true, false, 1318677581},
    {"maze", 500, false, true, 158988835},
    {"miner", 1000, false, true, 0},
    {"ninja", 1000, false, false, 1123500215},
    {"plunder", 4000, false, false, 0},
    {"starpilot", 1000, true, false, 0},
};

const GameFacts& facts_of(const std::string& name) {
  std::string names;
  for (const GameFacts& game : kGames) {
    if (game.name == name) return game;
    names.append(names.empty() ? "" : ", ").append(game.name);
  }
  throw std::invalid_argument("env_name expected one of " + names + ", got '" + name + "'");
}

std::int32_t int32_option(const Config& config, const char* name) {
  const std::int64_t value = config.integer(name);
  if (value < 0 || value > kMaxInt32) {
    throw std::invalid_argument(std::string(name) + " expected an integer from 0 to 2**31-1, got " + std::to_string(value));
  }
  return static_cast<std::int32_t>(value);
}

// The library draws its pictures here, one at a time: a picture is 64 times as large as an observation.
std::mutex render_mutex;
std::uint8_t* render_buffer() {
  static std::vector<std::uint8_t> buffer(std::size_t{kRenderSize} * kRenderSize * 3);
  return buffer.data();
}

// Replaces the time limit in a saved state and returns the previous one. The state starts with the format's version, the
// game's name, 12 options, 5 numbers, two random generators, the reward, two flags, the action and the time limit. Numbers
// have 4 bytes; a generator is a number and a text; texts start with their length.
std::int32_t replace_time_limit(std::string& state, std::int32_t limit) {
  std::size_t position = 0;
  const auto number = [&] {
    std::int32_t value;
    if (position + sizeof value > state.size()) throw std::runtime_error("its state is shorter than expected");
    std::memcpy(&value, state.data() + position, sizeof value);
    position += sizeof value;
    return value;
  };
  const auto skip_text = [&] {
    const std::int32_t size = number();
    if (size < 0 || static_cast<std::size_t>(size) > state.size() - position) {
      throw std::runtime_error("its state has another format than expected");
    }
    position += size;
  };
  if (const std::int32_t version = number(); version != 0) {
    throw std::runtime_error("its state expected version 0, got " + std::to_string(version));
  }
  skip_text();
  for (int i = 0; i < 12 + 5; ++i) number();
  for (int generator = 0; generator < 2; ++generator) {
    number();
    skip_text();
  }
  for (int i = 0; i < 4; ++i) number();
  const std::size_t place = position;
  const std::int32_t previous = number();
  std::memcpy(state.data() + place, &limit, sizeof limit);
  return previous;
}

}  // namespace

Params GameOptions::params() {
  return {{"env_name", "coinrun", "the game"},
          {"distribution_mode", "hard", "easy, hard, extreme, memory or exploration; not every game has all of them"},
          {"num_levels", 0, "the number of levels, from start_level on; 0: all"},
          {"start_level", 0, "the seed of the first level, if num_levels is not 0"},
          {"use_sequential_levels", false, "a completed level is followed by the next one, without an end of the episode"},
          {"center_agent", true, "the view follows the agent"},
          {"use_backgrounds", true, "False: a black background"},
          {"use_monochrome_assets", false, "rectangles of one color instead of pictures"},
          {"restrict_themes", false, "one theme instead of several, where a game has them"},
          {"use_generated_assets", false, "generated pictures instead of drawn ones"},
          {"paint_vel_info", false, "paint the agent's velocity into the upper left corner, in some games"},
          {"use_easy_jump", false, "EnvPool's option; the package's Python does not have it"},
          {"debug_mode", 0, "the package's, for its developers"}};
}

GameOptions::GameOptions(const Config& config)
    : env_name(config.text("env_name")),
      num_levels(int32_option(config, "num_levels")),
      start_level(int32_option(config, "start_level")),
      debug_mode(int32_option(config, "debug_mode")),
      use_sequential_levels(config.flag("use_sequential_levels")),
      center_agent(config.flag("center_agent")),
      use_backgrounds(config.flag("use_backgrounds")),
      use_monochrome_assets(config.flag("use_monochrome_assets")),
      restrict_themes(config.flag("restrict_themes")),
      use_generated_assets(config.flag("use_generated_assets")),
      paint_vel_info(config.flag("paint_vel_info")),
      use_easy_jump(config.flag("use_easy_jump")) {
  const GameFacts& game = facts_of(env_name);
  time_limit = game.time_limit;
  const std::string mode = config.text("distribution_mode");
  if (mode == "easy") {
    distribution_mode = kEasy;
  } else if (mode == "hard") {
    distribution_mode = kHard;
  } else if (mode == "extreme" && game.has_extreme) {
    distribution_mode = kExtreme;
  } else if (mode == "memory" && game.has_memory) {
    distribution_mode = kMemory;
    if (env_name == "jumper") time_limit = 2000;
  } else if (mode == "exploration" && game.exploration_seed != 0) {
    if (num_levels != 0 || start_level != 0) {
      throw std::invalid_argument(
          "distribution_mode='exploration' is one level of its own; leave num_levels and start_level out");
    }
    distribution_mode = kHard;
    num_levels = 1;
    start_level = game.exploration_seed;
  } else {
    throw std::invalid_argument("distribution_mode of " + env_name + " expected easy, hard" +
                                (game.has_extreme ? ", extreme" : "") + (game.has_memory ? ", memory" : "") +
                                (game.exploration_seed != 0 ? ", exploration" : "") + ", got '" + mode + "'");
  }
  if (num_levels > kMaxInt32 - start_level) {
    throw std::invalid_argument("start_level + num_levels expected at most 2**31-1, got " + std::to_string(start_level) +
                                " + " + std::to_string(num_levels));
  }
}

std::string GameOptions::text() const {
  std::string result = env_name;
  for (const std::int32_t value :
       {num_levels, start_level, distribution_mode, debug_mode, std::int32_t{use_sequential_levels},
        std::int32_t{center_agent}, std::int32_t{use_backgrounds}, std::int32_t{use_monochrome_assets},
        std::int32_t{restrict_themes}, std::int32_t{use_generated_assets}, std::int32_t{paint_vel_info},
        std::int32_t{use_easy_jump}}) {
    result.append(" ").append(std::to_string(value));
  }
  return result;
}

Game::Game(const GameOptions& options, std::int32_t rand_seed) : libenv_(libenv()) {
  // The library keeps none of these after make().
  std::string env_name = options.env_name;
  std::string asset_folder = libenv_.asset_folder;
  std::int32_t integers[7];
  std::uint8_t flags[9];
  LibenvOption items[18];
  std::int32_t num_integers = 0, num_flags = 0, count = 0;
  const auto add = [&](const char* name, LibenvDtype dtype, std::size_t size, void* data) {
    LibenvOption& item = items[count++];
    std::memset(&item, 0, sizeof item);
    std::strncpy(item.name, name, sizeof item.name - 1);
    item.dtype = dtype;
    item.count = static_cast<std::int32_t>(size);
    item.data = data;
  };
  const auto add_text = [&](const char* name, std::string& value) { add(name, kUint8, value.size(), value.data()); };
  const auto add_integer = [&](const char* name, std::int32_t value) {
    integers[num_integers] = value;
    add(name, kInt32, 1, &integers[num_integers++]);
  };
  const auto add_flag = [&](const char* name, bool value) {
    flags[num_flags] = value ? 1 : 0;
    add(name, kUint8, 1, &flags[num_flags++]);
  };
  add_text("env_name", env_name);
  add_text("resource_root", asset_folder);
  add_integer("num_levels", options.num_levels);
  add_integer("start_level", options.start_level);
  add_integer("num_actions", kNumActions);
  add_integer("rand_seed", rand_seed);
  add_integer("num_threads", 0);  // the engine's threads step the games
  add_integer("distribution_mode", options.distribution_mode);
  add_integer("debug_mode", options.debug_mode);
  add_flag("render_human", true);  // costs nothing until observe() is called, which only render() does
  add_flag("use_sequential_levels", options.use_sequential_levels);
  add_flag("center_agent", options.center_agent);
  add_flag("use_backgrounds", options.use_backgrounds);
  add_flag("use_monochrome_assets", options.use_monochrome_assets);
  add_flag("restrict_themes", options.restrict_themes);
  add_flag("use_generated_assets", options.use_generated_assets);
  add_flag("paint_vel_info", options.paint_vel_info);
  add_flag("use_easy_jump", options.use_easy_jump);
  handle_ = libenv_.make(1, {items, count});
  try {
    check_spaces();
    void* observations[] = {frame_.data()};
    void* actions[] = {&action_};
    void* infos[] = {&prev_level_seed_, &prev_level_complete_, &level_seed_, render_buffer()};
    LibenvBuffers buffers{observations, &reward_, &first_, infos, actions};
    libenv_.set_buffers(handle_, &buffers);
    if (!options.has_state()) return;
    std::string state = get_state();
    if (const std::int32_t limit = replace_time_limit(state, kMaxInt32); limit != options.time_limit) {
      throw std::runtime_error("the time limit of " + options.env_name + " expected " + std::to_string(options.time_limit) +
                               " steps, got " + std::to_string(limit));
    }
    if (!options.keeps_time_limit()) set_state(std::move(state));
  } catch (const std::exception& error) {
    libenv_.close(handle_);
    throw std::runtime_error(std::string("Procgen's library differs from that of procgen-mirror 0.10.7: ") + error.what() +
                             "; run: pip install --no-deps procgen-mirror==0.10.7");
  }
}

Game::~Game() { libenv_.close(handle_); }

// Before the library writes to the buffers.
void Game::check_spaces() const {
  const auto check = [this](LibenvSpace space, std::initializer_list<std::pair<const char*, std::int64_t>> expected) {
    std::vector<LibenvTensorType> types(static_cast<std::size_t>(libenv_.get_tensortypes(handle_, space, nullptr)));
    if (!types.empty()) libenv_.get_tensortypes(handle_, space, types.data());
    bool is_equal = types.size() == expected.size();
    for (std::size_t i = 0; is_equal && i < types.size(); ++i) {
      const auto& [name, bytes] = expected.begin()[i];
      std::int64_t size = types[i].dtype == kUint8 ? 1 : 4;
      for (std::int32_t k = 0; k < types[i].ndim; ++k) size *= types[i].shape[k];
      is_equal = std::strncmp(types[i].name, name, sizeof types[i].name) == 0 && size == bytes;
    }
    if (!is_equal) throw std::runtime_error("its spaces have other names or sizes");
  };
  check(kObservations, {{"rgb", kFrameBytes}});
  check(kActions, {{"action", 4}});
  check(kInfos, {{"prev_level_seed", 4},
                 {"prev_level_complete", 1},
                 {"level_seed", 4},
                 {"rgb", std::int64_t{kRenderSize} * kRenderSize * 3}});
}

void Game::render(std::uint8_t* rgb) {
  const std::lock_guard lock(render_mutex);
  libenv_.observe(handle_);
  std::memcpy(rgb, render_buffer(), std::size_t{kRenderSize} * kRenderSize * 3);
}

std::string Game::get_state() const {
  std::string state(kMaxStateBytes, '\0');
  state.resize(static_cast<std::size_t>(libenv_.get_state(handle_, 0, state.data(), kMaxStateBytes)));
  return state;
}

void Game::set_state(std::string state) { libenv_.set_state(handle_, 0, state.data(), static_cast<int>(state.size())); }

}  // namespace envfleet::procgen
