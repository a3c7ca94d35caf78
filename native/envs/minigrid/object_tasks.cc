// Tasks of finding an object in one room: Fetch, GoToDoor, GoToObject, PutNear.
#include <algorithm>
#include <cstdlib>
#include <vector>

#include "envs/minigrid/task.h"

namespace minigrid {

namespace {

struct Object {
  std::uint32_t type, color;
  Point at = kNowhere;

  bool is_like(const Object& other) const { return type == other.type && color == other.color; }
  // Its kind among key, ball and box.
  int kind() const { return static_cast<int>(type - kKey); }
  int color_rank() const { return kNameRanks[color]; }
};

Object random_object(Rng& rng, int num_kinds) {
  const std::uint32_t type = kKey + World::random_int(rng, 0, num_kinds);
  return {type, World::random_color(rng)};
}

bool is_new(const Object& object, const std::vector<Object>& objects) {
  return std::none_of(objects.begin(), objects.end(), [&](const Object& own) { return own.is_like(object); });
}

bool is_beside(Point one, Point other) {
  return (one.x == other.x && std::abs(one.y - other.y) == 1) || (one.y == other.y && std::abs(one.x - other.x) == 1);
}

// "done" beside the target succeeds; after "done" and "toggle" the episode is over in any case.
Outcome step_towards(World& world, int action) {
  Outcome outcome = world.act(action);
  if (action == kToggle) outcome.terminated = true;
  if (action == kDone) {
    if (is_beside(world.agent, world.target)) outcome.reward = world.success();
    outcome.terminated = true;
  }
  return outcome;
}

class Fetch : public Task {
 public:
  void complete(Settings& settings) const override {
    complete_square(settings, 3, 5 * settings.size * settings.size);
    check_range("numObjs", settings.num_objects, 1, kMaxSize * kMaxSize);
  }
  int num_missions() const override { return kNumPhrases * kNumColors * 2; }

  void generate(const Settings& settings, World& world, Rng& rng) const override {
    world.surround();
    std::vector<Object> objects;
    while (static_cast<int>(objects.size()) < settings.num_objects) {
      objects.push_back(random_object(rng, 2));
      world.place(rng, make(objects.back().type, objects.back().color));
    }
    world.place_agent(rng);
    const Object& wanted = objects[World::random_int(rng, 0, settings.num_objects)];
    world.wanted = make(wanted.type, wanted.color);
    const int phrase = World::random_int(rng, 0, kNumPhrases);
    world.mission = (phrase * kNumColors + wanted.color_rank()) * 2 + wanted.kind();
  }

  Outcome step(World& world, int action, Rng&) const override {
    Outcome outcome = world.act(action);
    if (world.carrying != kEmpty) outcome = {world.carrying == world.wanted ? world.success() : 0.0, true};
    return outcome;
  }

 private:
  static constexpr int kNumPhrases = 5;
};

class GoToDoor : public Task {
 public:
  void complete(Settings& settings) const override { complete_square(settings, 5, 4 * settings.size * settings.size); }
  int num_missions() const override { return kNumColors; }

  void generate(const Settings&, World& world, Rng& rng) const override {
    const int width = World::random_int(rng, 5, world.width() + 1);
    const int height = World::random_int(rng, 5, world.height() + 1);
    world.wall_rect({0, 0}, {width, height});
    Point doors[4];
    doors[0] = {World::random_int(rng, 2, width - 2), 0};
    doors[1] = {World::random_int(rng, 2, width - 2), height - 1};
    doors[2] = {0, World::random_int(rng, 2, height - 2)};
    doors[3] = {width - 1, World::random_int(rng, 2, height - 2)};
    Color colors[4];
    for (int count = 0; count < 4;) {
      colors[count] = World::random_color(rng);
      if (std::find(colors, colors + count, colors[count]) == colors + count) ++count;
    }
    for (int i = 0; i < 4; ++i) world.set(doors[i], make(kDoor, colors[i], kClosed));
    world.place_agent(rng, {0, 0}, {width, height});
    const int chosen = World::random_int(rng, 0, 4);
    world.target = doors[chosen];
    world.mission = kNameRanks[colors[chosen]];
  }

  Outcome step(World& world, int action, Rng&) const override { return step_towards(world, action); }
};

class GoToObject : public Task {
 public:
  void complete(Settings& settings) const override {
    complete_square(settings, 3, 5 * settings.size * settings.size);
    check_range("numObjs", settings.num_objects, 1, 3 * kNumColors);
  }
  int num_missions() const override { return kNumColors * 3; }

  void generate(const Settings& settings, World& world, Rng& rng) const override {
    world.surround();
    std::vector<Object> objects;
    while (static_cast<int>(objects.size()) < settings.num_objects) {
      Object object = random_object(rng, 3);
      if (!is_new(object, objects)) continue;
      object.at = world.place(rng, make(object.type, object.color));
      objects.push_back(object);
    }
    world.place_agent(rng);
    const Object& wanted = objects[World::random_int(rng, 0, settings.num_objects)];
    world.target = wanted.at;
    world.mission = wanted.color_rank() * 3 + wanted.kind();
  }

  Outcome step(World& world, int action, Rng&) const override { return step_towards(world, action); }
};

class PutNear : public Task {
 public:
  void complete(Settings& settings) const override {
    complete_square(settings, 3, 5 * settings.size);
    check_range("numObjs", settings.num_objects, 2, 3 * kNumColors);
  }
  int num_missions() const override { return kNumColors * 3 * kNumColors * 3; }

  void generate(const Settings& settings, World& world, Rng& rng) const override {
    world.surround();
    std::vector<Object> objects;
    const auto is_near = [&](Point at) {
      return std::any_of(objects.begin(), objects.end(), [&](const Object& own) { return are_near(own.at, at); });
    };
    while (static_cast<int>(objects.size()) < settings.num_objects) {
      Object object = random_object(rng, 3);
      if (!is_new(object, objects)) continue;
      object.at = world.place(rng, make(object.type, object.color), {0, 0}, {world.width(), world.height()}, World::kNoLimit,
                              is_near);
      objects.push_back(object);
    }
    world.place_agent(rng);
    const int moved = World::random_int(rng, 0, settings.num_objects);
    int near;
    do {
      near = World::random_int(rng, 0, settings.num_objects);
    } while (near == moved);
    world.wanted = make(objects[moved].type, objects[moved].color);
    world.target = objects[near].at;
    const auto number = [](const Object& own) { return own.color_rank() * 3 + own.kind(); };
    world.mission = number(objects[moved]) * kNumColors * 3 + number(objects[near]);
  }

  Outcome step(World& world, int action, Rng&) const override {
    const bool was_carrying = world.carrying != kEmpty;
    Outcome outcome = world.act(action);
    if (action == kPickUp && world.carrying != kEmpty && world.carrying != world.wanted) outcome.terminated = true;
    if (action == kDrop && was_carrying) {
      const bool has_dropped = world.carrying == kEmpty;
      if (has_dropped && are_near(world.front(), world.target)) outcome.reward = world.success();
      outcome.terminated = true;
    }
    return outcome;
  }

 private:
  static bool are_near(Point one, Point other) { return std::abs(one.x - other.x) <= 1 && std::abs(one.y - other.y) <= 1; }
};

}  // namespace

const Task* find_object_task(const std::string& name) {
  static const Fetch fetch;
  static const GoToDoor go_to_door;
  static const GoToObject go_to_object;
  static const PutNear put_near;
  if (name == "Fetch") return &fetch;
  if (name == "GoToDoor") return &go_to_door;
  if (name == "GoToObject") return &go_to_object;
  if (name == "PutNear") return &put_near;
  return nullptr;
}

}  // namespace minigrid
