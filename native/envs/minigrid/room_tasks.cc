// Tasks on a raster of rooms with doors between them: Unlock, UnlockPickup, BlockedUnlockPickup, KeyCorridor, and the
// ObstructedMazes.
#include <array>
#include <cstdlib>
#include <vector>

#include "envs/minigrid/task.h"

namespace minigrid {

namespace {

// The rooms while a grid is made. Sides are numbered right, down, left, up, as directions are.
class Rooms {
 public:
  struct Room {
    Point top;
    Point doors[4];  // where a door would be; kNowhere: no neighbour
    bool is_connected[4] = {};
    bool is_locked = false;
  };

  Rooms(const Settings& settings, World& world, Rng& rng)
      : world_(world), rng_(rng), size_(settings.room_size), num_rows_(settings.num_rows), num_cols_(settings.num_cols) {
    rooms_.resize(static_cast<std::size_t>(num_rows_) * num_cols_);
    for (int j = 0; j < num_rows_; ++j) {
      for (int i = 0; i < num_cols_; ++i) {
        room(i, j).top = {i * (size_ - 1), j * (size_ - 1)};
        world.wall_rect(room(i, j).top, {size_, size_});
      }
    }
    for (int j = 0; j < num_rows_; ++j) {
      for (int i = 0; i < num_cols_; ++i) {
        Room& own = room(i, j);
        const Point first{own.top.x + 1, own.top.y + 1}, last{own.top.x + size_ - 1, own.top.y + size_ - 1};
        for (Point& door : own.doors) door = kNowhere;
        if (i < num_cols_ - 1) own.doors[0] = {last.x, World::random_int(rng, first.y, last.y)};
        if (j < num_rows_ - 1) own.doors[1] = {World::random_int(rng, first.x, last.x), last.y};
        if (i > 0) own.doors[2] = room(i - 1, j).doors[0];
        if (j > 0) own.doors[3] = room(i, j - 1).doors[1];
      }
    }
    // In the middle until it is placed: objects keep away from there.
    world.agent = {num_cols_ / 2 * (size_ - 1) + size_ / 2, num_rows_ / 2 * (size_ - 1) + size_ / 2};
    world.direction = 0;
  }

  Room& room(int i, int j) { return rooms_[static_cast<std::size_t>(j) * num_cols_ + i]; }

  Point add_object(int i, int j, Cell object) {
    return world_.place(rng_, object, room(i, j).top, {size_, size_}, kMaxTries,
                        [this](Point at) { return std::abs(world_.agent.x - at.x) + std::abs(world_.agent.y - at.y) < 2; });
  }

  // Where the door is.
  Point add_door(int i, int j, int side, Color color, bool is_locked) {
    connect(i, j, side);
    room(i, j).is_locked = is_locked;
    const Point at = room(i, j).doors[side];
    world_.set(at, make(kDoor, color, is_locked ? kLocked : kClosed));
    return at;
  }

  void remove_wall(int i, int j, int side) {
    connect(i, j, side);
    const Point top = room(i, j).top;
    const int end = size_ - 1;
    for (int k = 1; k < end; ++k) {
      const Point at[4] = {{end, k}, {k, end}, {0, k}, {k, 0}};
      world_.set(top + at[side], kEmpty);
    }
  }

  // Not right in front of an object.
  void place_agent(int i, int j) {
    for (int tries = 0; tries < World::kNoLimit; ++tries) {
      world_.place_agent(rng_, room(i, j).top, {size_, size_}, kMaxTries);
      const Cell ahead = world_.get(world_.front());
      if (ahead == kEmpty || type_of(ahead) == kWallType) return;
    }
    throw std::runtime_error("found no place for the agent; a larger room_size leaves more room");
  }

  // Doors at random until every room can be reached.
  void connect_all() {
    for (int tries = 0; tries <= 5000; ++tries) {
      if (num_reachable() == rooms_.size()) return;
      const int i = World::random_int(rng_, 0, num_cols_);
      const int j = World::random_int(rng_, 0, num_rows_);
      const int side = World::random_int(rng_, 0, 4);
      const Room& own = room(i, j);
      if (own.doors[side] == kNowhere || own.is_connected[side]) continue;
      if (own.is_locked || neighbour(i, j, side).is_locked) continue;
      add_door(i, j, side, World::random_color(rng_), false);
    }
    throw std::runtime_error("found no way to connect all rooms; reset again");
  }

 private:
  static constexpr int kMaxTries = 1000;

  Room& neighbour(int i, int j, int side) { return room(i + kDirections[side].x, j + kDirections[side].y); }

  void connect(int i, int j, int side) {
    room(i, j).is_connected[side] = true;
    neighbour(i, j, side).is_connected[(side + 2) % 4] = true;
  }

  std::size_t num_reachable() {
    std::vector<std::uint8_t> is_reached(rooms_.size(), 0);
    std::vector<Point> next{{world_.agent.x / (size_ - 1), world_.agent.y / (size_ - 1)}};
    std::size_t count = 0;
    while (!next.empty()) {
      const Point at = next.back();
      next.pop_back();
      std::uint8_t& own = is_reached[static_cast<std::size_t>(at.y) * num_cols_ + at.x];
      if (own != 0) continue;
      own = 1;
      ++count;
      for (int side = 0; side < 4; ++side) {
        if (room(at.x, at.y).is_connected[side]) next.push_back(at + kDirections[side]);
      }
    }
    return count;
  }

  World& world_;
  Rng& rng_;
  int size_, num_rows_, num_cols_;
  std::vector<Room> rooms_;
};

void complete_rooms(Settings& settings, int default_max_steps) {
  check_range("room_size", settings.room_size, 3, kMaxSize);
  check_range("num_rows", settings.num_rows, 1, kMaxSize);
  check_range("num_cols", settings.num_cols, 1, kMaxSize);
  settings.width = (settings.room_size - 1) * settings.num_cols + 1;
  settings.height = (settings.room_size - 1) * settings.num_rows + 1;
  check_range("room_size * num_cols", settings.width, 3, kMaxSize);
  check_range("room_size * num_rows", settings.height, 3, kMaxSize);
  if (settings.max_steps == 0) settings.max_steps = default_max_steps;
}

// Tasks of picking one object up.
class PickUp : public Task {
 public:
  Outcome step(World& world, int action, Rng&) const override {
    Outcome outcome = world.act(action);
    if (action == kPickUp && (world.carrying & kTarget) != 0) outcome = {world.success(), true};
    return outcome;
  }
};

void two_rooms(Settings& settings) {
  settings.room_size = 6;
  settings.num_rows = 1;
  settings.num_cols = 2;
}

class Unlock : public Task {
 public:
  void complete(Settings& settings) const override {
    two_rooms(settings);
    complete_rooms(settings, 8 * 36);
  }

  void generate(const Settings& settings, World& world, Rng& rng) const override {
    Rooms rooms(settings, world, rng);
    const Color color = World::random_color(rng);
    world.target = rooms.add_door(0, 0, 0, color, true);
    rooms.add_object(0, 0, make(kKey, color));
    rooms.place_agent(0, 0);
  }

  Outcome step(World& world, int action, Rng&) const override {
    Outcome outcome = world.act(action);
    const bool is_open = world.contains(world.target) && is_open_door(world.get(world.target));
    if (action == kToggle && is_open) outcome = {world.success(), true};
    return outcome;
  }
};

class UnlockPickUp : public PickUp {
 public:
  explicit UnlockPickUp(bool is_blocked) : is_blocked_(is_blocked) {}

  void complete(Settings& settings) const override {
    two_rooms(settings);
    complete_rooms(settings, (is_blocked_ ? 16 : 8) * 36);
  }
  int num_missions() const override { return is_blocked_ ? kNumColors * 2 : kNumColors; }

  void generate(const Settings& settings, World& world, Rng& rng) const override {
    Rooms rooms(settings, world, rng);
    const Color box_color = World::random_color(rng);
    rooms.add_object(1, 0, make(kBox, box_color) | kTarget);
    const Color door_color = World::random_color(rng);
    const Point door = rooms.add_door(0, 0, 0, door_color, true);
    if (is_blocked_) world.set({door.x - 1, door.y}, make(kBall, World::random_color(rng)));
    rooms.add_object(0, 0, make(kKey, door_color));
    rooms.place_agent(0, 0);
    // Blocked, the package's missions have a box or a key; it is always the box.
    world.mission = kNameRanks[box_color] * (is_blocked_ ? 2 : 1);
  }

 private:
  bool is_blocked_;
};

class KeyCorridor : public PickUp {
 public:
  void complete(Settings& settings) const override {
    settings.num_cols = 3;
    complete_rooms(settings, 30 * settings.room_size * settings.room_size);
    if (settings.object_type < kKey || settings.object_type > kBox) {
      throw std::invalid_argument("obj_type expected a key, a ball or a box");
    }
  }
  int num_missions() const override { return kNumColors; }

  void generate(const Settings& settings, World& world, Rng& rng) const override {
    Rooms rooms(settings, world, rng);
    for (int j = 1; j < settings.num_rows; ++j) rooms.remove_wall(1, j, 3);
    const int row = World::random_int(rng, 0, settings.num_rows);
    const Color door_color = World::random_color(rng);
    rooms.add_door(2, row, 2, door_color, true);
    const Color color = World::random_color(rng);
    rooms.add_object(2, row, make(settings.object_type, color) | kTarget);
    const int key_row = World::random_int(rng, 0, settings.num_rows);
    rooms.add_object(0, key_row, make(kKey, door_color));
    rooms.place_agent(1, settings.num_rows / 2);
    rooms.connect_all();
    world.mission = kNameRanks[color];
  }
};

class ObstructedMaze : public PickUp {
 protected:
  static constexpr Color kBallColor = kColorsByName[0], kBlockingColor = kColorsByName[1], kBoxColor = kColorsByName[2];

  static void complete_maze(Settings& settings) {
    settings.room_size = 6;
    complete_rooms(settings, 4 * settings.num_rooms_visited * 36);
  }

  // All colors, in random order.
  static std::array<Color, kNumColors> shuffled_colors(Rng& rng) {
    std::vector<Color> left(kColorsByName, kColorsByName + kNumColors);
    std::array<Color, kNumColors> colors;
    for (Color& color : colors) {
      const auto drawn = left.begin() + World::random_int(rng, 0, static_cast<int>(left.size()));
      color = *drawn;
      left.erase(drawn);
    }
    return colors;
  }

  static void add_locked_door(const Settings& settings, World& world, Rooms& rooms, Point room, int side, Color color) {
    const Point door = rooms.add_door(room.x, room.y, side, color, true);
    if (settings.blocked) world.set(door - kDirections[side], make(kBall, kBlockingColor));
  }
  static void add_key(const Settings& settings, Rooms& rooms, Point room, Color color) {
    rooms.add_object(room.x, room.y, settings.key_in_box ? box_with_key(kBoxColor, color) : make(kKey, color));
  }
  static void add_ball(Rooms& rooms, Point room) { rooms.add_object(room.x, room.y, make(kBall, kBallColor) | kTarget); }
};

class ObstructedMazeOneDoor : public ObstructedMaze {
 public:
  void complete(Settings& settings) const override {
    settings.num_rows = 1;
    settings.num_cols = 2;
    settings.num_rooms_visited = 2;
    complete_maze(settings);
  }

  void generate(const Settings& settings, World& world, Rng& rng) const override {
    Rooms rooms(settings, world, rng);
    const auto colors = shuffled_colors(rng);
    add_locked_door(settings, world, rooms, {0, 0}, 0, colors[0]);
    add_key(settings, rooms, {0, 0}, colors[0]);
    add_ball(rooms, {1, 0});
    rooms.place_agent(0, 0);
  }
};

class ObstructedMazeFull : public ObstructedMaze {
 public:
  // keys_last: version 1, where no ball that blocks a door can hide a key that was placed before.
  explicit ObstructedMazeFull(bool keys_last) : keys_last_(keys_last) {}

  void complete(Settings& settings) const override {
    settings.num_rows = settings.num_cols = 3;
    check_range("num_quarters", settings.num_quarters, 1, 4);
    check_range("num_rooms_visited", settings.num_rooms_visited, 1, 1'000'000);
    check_range("agent_room", settings.agent_room.x, 0, 2);
    check_range("agent_room", settings.agent_room.y, 0, 2);
    complete_maze(settings);
  }

  void generate(const Settings& settings, World& world, Rng& rng) const override {
    constexpr Point side_rooms[4] = {{2, 1}, {1, 2}, {0, 1}, {1, 0}};
    constexpr Point corners[4] = {{2, 0}, {2, 2}, {0, 2}, {0, 0}};
    Rooms rooms(settings, world, rng);
    const auto colors = shuffled_colors(rng);
    for (int i = 0; i < settings.num_quarters; ++i) {
      rooms.add_door(1, 1, i, colors[i], false);
      for (const int k : {-1, 1}) {
        const Color color = colors[(i + k + kNumColors) % kNumColors];
        add_locked_door(settings, world, rooms, side_rooms[i], (i + k + 4) % 4, color);
        if (!keys_last_) add_key(settings, rooms, side_rooms[i], color);
      }
      for (const int k : {-1, 1}) {
        if (keys_last_) add_key(settings, rooms, side_rooms[i], colors[(i + k + kNumColors) % kNumColors]);
      }
    }
    add_ball(rooms, corners[World::random_int(rng, 0, settings.num_quarters)]);
    rooms.place_agent(settings.agent_room.x, settings.agent_room.y);
  }

 private:
  bool keys_last_;
};

}  // namespace

const Task* find_room_task(const std::string& name) {
  static const Unlock unlock;
  static const UnlockPickUp unlock_pickup(false), blocked_unlock_pickup(true);
  static const KeyCorridor key_corridor;
  static const ObstructedMazeOneDoor one_door;
  static const ObstructedMazeFull full(false), full_v1(true);
  if (name == "Unlock") return &unlock;
  if (name == "UnlockPickup") return &unlock_pickup;
  if (name == "BlockedUnlockPickup") return &blocked_unlock_pickup;
  if (name == "KeyCorridor") return &key_corridor;
  if (name == "ObstructedMaze_1Dlhb") return &one_door;
  if (name == "ObstructedMaze_Full") return &full;
  if (name == "ObstructedMaze_Full_V1") return &full_v1;
  return nullptr;
}

}  // namespace minigrid
