// Game: one env of Procgen's library, with buffers of its own and without its time limit.
//
// The library resets a game by itself in the step that ends an episode, so that step's frame is the first of the next
// episode and first() is true. Game removes the library's time limit, by changing it in the saved state, because the
// library treats a time limit like an end of the game: whoever uses Game counts the steps. See keeps_time_limit() for
// exceptions.
//
// Thread safety: a Game is used by one thread at a time; different Games by different threads at once.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "envfleet/env.h"
#include "libenv.h"

namespace envfleet::procgen {

inline constexpr int kSize = 64;            // of an observation, both ways
inline constexpr int kNumActions = 15;      // the library takes as many as it is told
inline constexpr int kRenderSize = 512;     // of a picture, both ways
inline constexpr std::int32_t kReset = -1;  // the action that ends an episode and draws the next level
inline constexpr int kFrameBytes = kSize * kSize * 3;

using FrameBytes = std::array<std::uint8_t, kFrameBytes>;

// Valid options: the constructor throws std::invalid_argument otherwise.
struct GameOptions {
  explicit GameOptions(const Config& config);

  static Params params();

  std::string env_name;
  std::int32_t num_levels, start_level, distribution_mode, debug_mode;
  bool use_sequential_levels, center_agent, use_backgrounds, use_monochrome_assets, restrict_themes, use_generated_assets,
      paint_vel_info, use_easy_jump;
  std::int32_t time_limit;  // of a level, in steps

  // The library cannot save generated pictures, and ends the process if it is asked to.
  bool has_state() const { return !use_generated_assets; }
  // The library's time limit cannot be removed: without a state, or because the game sets it again for each level.
  bool keeps_time_limit() const { return !has_state() || (env_name == "jumper" && time_limit == 2000); }
  // What tells envs with different options apart; part of a saved state.
  std::string text() const;
};

class Game {
 public:
  // The first call in a process loads all images of Procgen, which takes seconds.
  Game(const GameOptions& options, std::int32_t rand_seed);
  ~Game();
  Game(const Game&) = delete;
  Game& operator=(const Game&) = delete;

  // An action from 0 to 14, or kReset.
  void act(std::int32_t action) {
    action_ = action;
    libenv_.act(handle_);
  }

  const FrameBytes& frame() const { return frame_; }
  float reward() const { return reward_; }
  bool first() const { return first_ != 0; }
  std::int32_t prev_level_seed() const { return prev_level_seed_; }
  std::uint8_t prev_level_complete() const { return prev_level_complete_; }
  std::int32_t level_seed() const { return level_seed_; }

  // kRenderSize * kRenderSize * 3 bytes.
  void render(std::uint8_t* rgb);

  // Only if the options have a state.
  std::string get_state() const;
  // state: from get_state() of a game with the same options; anything else may end the process.
  void set_state(std::string state);

 private:
  void check_spaces() const;

  const Libenv& libenv_;
  Libenv::Handle* handle_;
  // Where the library writes. Aligned as gym3 does it.
  alignas(64) FrameBytes frame_{};
  float reward_ = 0;
  std::uint8_t first_ = 0;
  std::int32_t action_ = 0;
  std::int32_t prev_level_seed_ = 0;
  std::int32_t level_seed_ = 0;
  std::uint8_t prev_level_complete_ = 0;
};

}  // namespace envfleet::procgen
