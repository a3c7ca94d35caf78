// The Procgen envs: 16 games of the procgen package's library, one Game per env.
//
// Seeds: env i of a pool with seed s plays the levels of ProcgenGym3Env(num=1, rand_seed=s+i). A new seed makes a new
// Game; without one, an episode starts with the next level of the current Game.
//
// Ends: the library draws no frame after the last step of an episode, but the first one of the next. The row of that step
// repeats the frame before it, as the package's own gym env does, so that no episode shows another one's level.
// At the time limit, which Game removes from the library, the frame is the real one.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "envfleet/env.h"
#include "game.h"

namespace {

using envfleet::Config;
using envfleet::Out;
using envfleet::StateReader;
using envfleet::StateWriter;
using envfleet::procgen::FrameBytes;
using envfleet::procgen::Game;
using envfleet::procgen::GameOptions;
using envfleet::procgen::kFrameBytes;
using envfleet::procgen::kRenderSize;
using envfleet::procgen::kSize;

// The env's random generator as the engine sees it: a seed, since the library draws the levels itself.
class LevelSeed {
 public:
  struct State {
    std::int32_t seed;
    std::uint32_t is_new;
  };

  // words: the seed as four little-endian 32-bit words. The library takes 31 bits: larger seeds are hashed, as
  // int(np.random.SeedSequence(seed).generate_state(1)[0]) % 2**31.
  void seed(const std::uint32_t words[4]) {
    std::uint64_t value = words[0];
    if ((words[1] | words[2] | words[3]) != 0 || value > kMax) envfleet::SeedSequence(words).generate(&value, 1);
    state_ = {static_cast<std::int32_t>(value & kMax), 1};
  }
  void set_host(const ef_host*) {}

  std::int32_t value() const { return state_.seed; }
  bool is_new() const { return state_.is_new != 0; }
  void set_used() { state_.is_new = 0; }

  State save() const { return state_; }
  void load(const State& state) { state_ = state; }

 private:
  static constexpr std::uint32_t kMax = 0x7fffffff;
  State state_{0, 1};
};

// FNV-1a: what arrives damaged must not reach the library, which ends the process.
std::uint64_t checksum(std::string_view bytes) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
  return hash;
}

struct Procgen {
  using Random = LevelSeed;
  static constexpr bool writes_every_element = true;

  static envfleet::Params params() {
    envfleet::Params all = GameOptions::params();
    all.emplace_back("channel_first", false, "observations of shape (3, 64, 64) instead of (64, 64, 3)");
    return all;
  }

  static void spec(const Config& config, envfleet::Spec& spec) {
    const GameOptions options(config);
    if (config.flag("channel_first")) {
      spec.observation(envfleet::box<std::uint8_t>({3, kSize, kSize}, 0, 255));
    } else {
      spec.observation(envfleet::box<std::uint8_t>({kSize, kSize, 3}, 0, 255));
    }
    spec.action(envfleet::discrete(envfleet::procgen::kNumActions));
    spec.info("prev_level_seed", envfleet::scalar<std::int32_t>());
    spec.info("prev_level_complete", envfleet::box<std::uint8_t>({}, 0, 1));
    spec.info("level_seed", envfleet::scalar<std::int32_t>());
    // A sequence of levels has no limit; each of its levels has.
    if (!options.use_sequential_levels) spec.max_episode_steps(options.time_limit);
  }

  explicit Procgen(const Config& config) : options_(config), channel_first_(config.flag("channel_first")) {
    // Loads the images here, not in the first reset, whose duration the engine measures.
    static const bool is_loaded = (Game(options_, 0), true);
    static_cast<void>(is_loaded);
  }

  void reset(LevelSeed& seed, Out& out) {
    if (game_ == nullptr || seed.is_new()) {
      game_.reset();
      game_ = std::make_unique<Game>(options_, seed.value());
      seed.set_used();
    } else if (!is_ended_) {
      game_->act(envfleet::procgen::kReset);
    }
    is_ended_ = false;
    level_steps_ = 0;
    write(out);
  }

  void step(int action, Out& out) {
    Game& game = built();
    last_frame_ = game.frame();
    game.act(action);
    is_ended_ = game.first();
    // With use_sequential_levels, a completed level is followed by another, with a time limit of its own.
    level_steps_ = !is_ended_ && game.prev_level_complete() != 0 ? 0 : level_steps_ + 1;
    out.reward = game.reward();
    out.truncated = level_steps_ >= options_.time_limit;
    // A game that keeps the library's time limit ends there, whether or not it also ended by itself.
    out.terminated = is_ended_ && !(options_.keeps_time_limit() && out.truncated);
    write(out);
  }

  void observe(Out& out) { write_frame(out); }

  void render(envfleet::Frame& frame) {
    frame.resize(kRenderSize, kRenderSize);
    built().render(frame.rgb.data());
  }

  void save(StateWriter& writer) {
    if (!options_.has_state()) throw std::logic_error("Procgen cannot save the state with use_generated_assets=True");
    StateWriter content;
    const std::string options = options_.text();
    content.put(static_cast<std::uint32_t>(options.size()));
    content.put_bytes(options.data(), options.size());
    content.put(std::uint8_t{game_ != nullptr});
    if (game_ != nullptr) {
      content.put(level_steps_);
      content.put(std::uint8_t{is_ended_});
      content.put_bytes(last_frame_.data(), last_frame_.size());
      const std::string game = game_->get_state();
      content.put(static_cast<std::uint32_t>(game.size()));
      content.put_bytes(game.data(), game.size());
    }
    writer.put(checksum(content.bytes()));
    writer.put(static_cast<std::uint32_t>(content.bytes().size()));
    writer.put_bytes(content.bytes().data(), content.bytes().size());
  }

  void load(StateReader& reader) {
    const auto expected = reader.get<std::uint64_t>();
    const std::string all = read_text(reader);
    if (checksum(all) != expected) throw std::invalid_argument("the state is damaged: its checksum is wrong");
    StateReader content(all.data(), all.size());
    if (const std::string options = read_text(content); options != options_.text()) {
      throw std::invalid_argument("the state is from an env with other options: expected '" + options_.text() + "', got '" +
                                  options + "'");
    }
    if (!options_.has_state()) throw std::invalid_argument("Procgen has no states with use_generated_assets=True");
    if (content.get<std::uint8_t>() == 0) {
      game_.reset();
      is_ended_ = false;
      return;
    }
    level_steps_ = content.get<std::int32_t>();
    is_ended_ = content.get<std::uint8_t>() != 0;
    content.get_bytes(last_frame_.data(), last_frame_.size());
    std::string game = read_text(content);
    if (game_ == nullptr) game_ = std::make_unique<Game>(options_, 0);
    game_->set_state(std::move(game));
  }

 private:
  static std::string read_text(StateReader& reader) {
    const auto size = reader.get<std::uint32_t>();
    if (size > reader.rest().size()) throw std::invalid_argument("the state is shorter than this env's");
    std::string text(size, '\0');
    reader.get_bytes(text.data(), size);
    return text;
  }

  Game& built() {
    // The phase in a damaged state may say that the env runs.
    if (game_ == nullptr) throw std::logic_error("this env was not reset");
    return *game_;
  }

  void write(Out& out) {
    write_frame(out);
    *out.info<std::int32_t>(0) = game_->prev_level_seed();
    *out.info<std::uint8_t>(1) = game_->prev_level_complete();
    *out.info<std::int32_t>(2) = game_->level_seed();
  }

  void write_frame(Out& out) {
    const FrameBytes& frame = is_ended_ ? last_frame_ : built().frame();
    auto* obs = out.obs<std::uint8_t>();
    if (!channel_first_) {
      std::memcpy(obs, frame.data(), kFrameBytes);
      return;
    }
    constexpr int kPixels = kSize * kSize;
    for (int pixel = 0; pixel < kPixels; ++pixel) {
      obs[pixel] = frame[3 * pixel];
      obs[kPixels + pixel] = frame[3 * pixel + 1];
      obs[2 * kPixels + pixel] = frame[3 * pixel + 2];
    }
  }

  const GameOptions options_;
  const bool channel_first_;
  std::unique_ptr<Game> game_;  // null before the first reset
  FrameBytes last_frame_{};     // before the last step
  std::int32_t level_steps_ = 0;
  bool is_ended_ = false;  // the game shows the next episode already
};

}  // namespace

ENVFLEET_ENV("Procgen", Procgen)
