// Tasks of finding the way: Empty, FourRooms, DoorKey, MultiRoom, Crossing, LavaGap, DistShift, DynamicObstacles,
// Memory, LockedRoom, RedBlueDoors, Playground.
#include <algorithm>
#include <array>
#include <vector>

#include "envs/minigrid/task.h"

namespace minigrid {

namespace {

int square(int size) { return size * size; }

void start_agent(const Settings& settings, World& world, Rng& rng) {
  if (settings.agent_start == kNowhere) return world.place_agent(rng);
  if (!world.contains(settings.agent_start)) throw std::invalid_argument("agent_start_pos expected a square of the grid");
  world.agent = settings.agent_start;
  world.direction = settings.agent_start_dir;
}

class Empty : public Task {
 public:
  void complete(Settings& settings) const override { complete_square(settings, 3, 4 * square(settings.size)); }

  void generate(const Settings& settings, World& world, Rng& rng) const override {
    world.surround();
    world.set({world.width() - 2, world.height() - 2}, kGoal);
    start_agent(settings, world, rng);
  }
};

class FourRooms : public Task {
 public:
  void complete(Settings& settings) const override {
    settings.size = 19;
    complete_square(settings, 19, 100);
  }

  void generate(const Settings& settings, World& world, Rng& rng) const override {
    world.surround();
    const int room_width = world.width() / 2, room_height = world.height() / 2;
    for (int j = 0; j < 2; ++j) {
      for (int i = 0; i < 2; ++i) {
        const Point top{i * room_width, j * room_height}, end{top.x + room_width, top.y + room_height};
        if (i == 0) {
          world.vertical_wall({end.x, top.y}, room_height);
          world.set({end.x, World::random_int(rng, top.y + 1, end.y)}, kEmpty);
        }
        if (j == 0) {
          world.horizontal_wall({top.x, end.y}, room_width);
          world.set({World::random_int(rng, top.x + 1, end.x), end.y}, kEmpty);
        }
      }
    }
    if (settings.agent_start == kNowhere) {
      world.place_agent(rng);
    } else {
      world.set(settings.agent_start, kEmpty);
      world.agent = settings.agent_start;
      world.direction = World::random_int(rng, 0, 4);
    }
    if (settings.goal_start == kNowhere) {
      world.place(rng, kGoal);
    } else {
      world.set(settings.goal_start, kGoal);
    }
  }
};

class DoorKey : public Task {
 public:
  void complete(Settings& settings) const override { complete_square(settings, 5, 10 * square(settings.size)); }

  void generate(const Settings&, World& world, Rng& rng) const override {
    world.surround();
    world.set({world.width() - 2, world.height() - 2}, kGoal);
    const int split = World::random_int(rng, 2, world.width() - 2);
    world.vertical_wall({split, 0}, world.height());
    const Point left_side{split, world.height()};
    world.place_agent(rng, {0, 0}, left_side);
    world.set({split, World::random_int(rng, 1, world.height() - 2)}, make(kDoor, kYellow, kLocked));
    world.place(rng, make(kKey, kYellow), {0, 0}, left_side);
  }
};

class MultiRoom : public Task {
 public:
  void complete(Settings& settings) const override {
    check_range("width", settings.width, 3, kMaxSize);
    check_range("height", settings.height, 3, kMaxSize);
    check_range("minNumRooms", settings.min_rooms, 1, 100);
    check_range("maxNumRooms", settings.max_rooms, settings.min_rooms, 100);
    check_range("maxRoomSize", settings.max_room_size, kMinRoomSize, kMaxSize);
    if (settings.max_steps == 0) settings.max_steps = settings.max_rooms * 20;
  }

  void generate(const Settings& settings, World& world, Rng& rng) const override {
    const int num_rooms = World::random_int(rng, settings.min_rooms, settings.max_rooms + 1);
    std::vector<Room> rooms, attempt;
    for (int tries = 0; static_cast<int>(rooms.size()) < num_rooms; ++tries) {
      if (tries == kMaxAttempts) {
        throw std::runtime_error("found no way to lay out " + std::to_string(num_rooms) +
                                 " rooms; ask for fewer or smaller");
      }
      attempt.clear();
      Point entry;
      entry.x = World::random_int(rng, 0, world.width() - 2);
      entry.y = World::random_int(rng, 0, world.width() - 2);  // the width, as in the package
      add_rooms(settings, world, rng, num_rooms, attempt, 2, entry);
      if (attempt.size() > rooms.size()) rooms.swap(attempt);
    }
    int last_color = -1;  // its place among the names
    for (std::size_t i = 0; i < rooms.size(); ++i) {
      world.wall_rect(rooms[i].top, rooms[i].size);
      if (i == 0) continue;
      // Another color than the door before.
      int color = World::random_int(rng, 0, last_color < 0 ? kNumColors : kNumColors - 1);
      if (last_color >= 0 && color >= last_color) ++color;
      world.set(rooms[i].entry, make(kDoor, kColorsByName[color], kClosed));
      last_color = color;
    }
    world.place_agent(rng, rooms.front().top, rooms.front().size);
    world.place(rng, kGoal, rooms.back().top, rooms.back().size);
  }

 private:
  struct Room {
    Point top, size, entry;
  };

  static constexpr int kMinRoomSize = 4;
  static constexpr int kMaxAttempts = 100'000;

  // Adds a room behind this door and those behind it, as many as there is space for. False: not even the first.
  static bool add_rooms(const Settings& settings, const World& world, Rng& rng, int num_left, std::vector<Room>& rooms,
                        int entry_wall, Point entry) {
    Point size;
    size.x = World::random_int(rng, kMinRoomSize, settings.max_room_size + 1);
    size.y = World::random_int(rng, kMinRoomSize, settings.max_room_size + 1);
    Point top = entry;
    if (!rooms.empty()) {
      if (entry_wall == 0) top.x = entry.x - size.x + 1;
      if (entry_wall == 1) top.y = entry.y - size.y + 1;
      if (entry_wall % 2 == 0) {
        top.y = World::random_int(rng, entry.y - size.y + 2, entry.y);
      } else {
        top.x = World::random_int(rng, entry.x - size.x + 2, entry.x);
      }
    }
    if (top.x < 0 || top.y < 0 || top.x + size.x > world.width() || top.y + size.y >= world.height()) return false;
    // The last room is the neighbour, which shares a wall.
    for (std::size_t i = 0; i + 1 < rooms.size(); ++i) {
      const Room& room = rooms[i];
      const bool is_apart = top.x + size.x < room.top.x || room.top.x + room.size.x <= top.x ||
                            top.y + size.y < room.top.y || room.top.y + room.size.y <= top.y;
      if (!is_apart) return false;
    }
    rooms.push_back({top, size, entry});
    if (num_left == 1) return true;
    for (int tries = 0; tries < 8; ++tries) {
      int wall = World::random_int(rng, 0, 3);
      if (wall >= entry_wall) ++wall;
      Point exit;
      if (wall % 2 == 0) {
        exit = {wall == 0 ? top.x + size.x - 1 : top.x, top.y + World::random_int(rng, 1, size.y - 1)};
      } else {
        exit = {top.x + World::random_int(rng, 1, size.x - 1), wall == 1 ? top.y + size.y - 1 : top.y};
      }
      if (add_rooms(settings, world, rng, num_left - 1, rooms, (wall + 2) % 4, exit)) break;
    }
    return true;
  }
};

// Generator.shuffle() of a list: numpy draws each place by masks and rejection.
template <class T>
void shuffle(std::vector<T>& values, Rng& rng) {
  for (std::uint32_t i = static_cast<std::uint32_t>(values.size()); i-- > 1;) {
    std::uint32_t mask = i;
    for (int shift = 1; shift < 32; shift *= 2) mask |= mask >> shift;
    std::uint32_t place;
    do {
      place = rng.next_uint32() & mask;
    } while (place > i);
    std::swap(values[i], values[place]);
  }
}

class Crossing : public Task {
 public:
  void complete(Settings& settings) const override {
    check_range("num_crossings", settings.num_crossings, 0, kMaxSize);
    complete_square(settings, 3, 4 * square(settings.size));
    if (settings.size % 2 == 0) {
      throw std::invalid_argument("size expected an odd number, got " + std::to_string(settings.size));
    }
  }

  void generate(const Settings& settings, World& world, Rng& rng) const override {
    const int width = world.width(), height = world.height();
    world.surround();
    world.agent = {1, 1};
    world.direction = 0;
    world.set({width - 2, height - 2}, kGoal);
    struct River {
      bool is_vertical;
      int at;
    };
    std::vector<River> rivers;
    for (int i = 2; i < height - 2; i += 2) rivers.push_back({true, i});
    for (int j = 2; j < width - 2; j += 2) rivers.push_back({false, j});
    shuffle(rivers, rng);
    if (rivers.size() > static_cast<std::size_t>(settings.num_crossings)) rivers.resize(settings.num_crossings);
    std::vector<int> columns{0}, rows{0};  // of the vertical and the horizontal ones, between the outer walls
    for (const River& river : rivers) (river.is_vertical ? columns : rows).push_back(river.at);
    std::sort(columns.begin(), columns.end());
    std::sort(rows.begin(), rows.end());
    for (std::size_t k = 1; k < rows.size(); ++k) world.horizontal_wall({1, rows[k]}, width - 2, settings.obstacle);
    for (std::size_t k = 1; k < columns.size(); ++k) world.vertical_wall({columns[k], 1}, height - 2, settings.obstacle);
    // The way to the goal: to the right as often as there are vertical rivers, down as often as horizontal ones.
    std::vector<std::uint8_t> goes_right(columns.size() - 1, 1);
    goes_right.resize(columns.size() + rows.size() - 2, 0);
    shuffle(goes_right, rng);
    columns.push_back(height - 1);
    rows.push_back(width - 1);
    std::size_t room_x = 0, room_y = 0;
    for (const std::uint8_t is_right : goes_right) {
      Point opening;
      if (is_right != 0) {
        opening = {columns[room_x + 1], between(rng, rows[room_y], rows[room_y + 1])};
        ++room_x;
      } else {
        opening = {between(rng, columns[room_x], columns[room_x + 1]), rows[room_y + 1]};
        ++room_y;
      }
      world.set(opening, kEmpty);
    }
  }

 private:
  // Generator.choice() of what lies between.
  static int between(Rng& rng, int low, int high) { return low + 1 + World::random_int(rng, 0, high - low - 1); }
};

class LavaGap : public Task {
 public:
  void complete(Settings& settings) const override { complete_square(settings, 5, 4 * square(settings.size)); }

  void generate(const Settings& settings, World& world, Rng& rng) const override {
    world.surround();
    world.agent = {1, 1};
    world.direction = 0;
    world.set({world.width() - 2, world.height() - 2}, kGoal);
    Point gap;
    gap.x = World::random_int(rng, 2, world.width() - 2);
    gap.y = World::random_int(rng, 1, world.height() - 1);
    world.vertical_wall({gap.x, 1}, world.height() - 2, settings.obstacle);
    world.set(gap, kEmpty);
  }
};

class DistShift : public Task {
 public:
  void complete(Settings& settings) const override {
    check_range("width", settings.width, 3, kMaxSize);
    check_range("height", settings.height, 3, kMaxSize);
    check_range("strip2_row", settings.strip2_row, 0, settings.height - 1);
    if (settings.max_steps == 0) settings.max_steps = 4 * settings.width * settings.height;
  }

  void generate(const Settings& settings, World& world, Rng& rng) const override {
    world.surround();
    world.set({world.width() - 2, 1}, kGoal);
    world.horizontal_wall({3, 1}, world.width() - 6, kLava);
    world.horizontal_wall({3, settings.strip2_row}, world.width() - 6, kLava);
    start_agent(settings, world, rng);
  }
};

class DynamicObstacles : public Task {
 public:
  void complete(Settings& settings) const override {
    complete_square(settings, 3, 4 * square(settings.size));
    check_range("n_obstacles", settings.num_obstacles, 0, kMaxSize * kMaxSize);
    if (settings.num_obstacles > settings.size / 2.0 + 1) settings.num_obstacles = settings.size / 2;
  }

  int num_actions() const override { return kForward + 1; }

  void generate(const Settings& settings, World& world, Rng& rng) const override {
    world.surround();
    world.set({world.width() - 2, world.height() - 2}, kGoal);
    start_agent(settings, world, rng);
    for (int i = 0; i < settings.num_obstacles; ++i) {
      const Point at = world.place(rng, kObstacle, {0, 0}, {world.width(), world.height()}, kMaxTries);
      world.obstacles.insert(world.obstacles.end(), {at.x, at.y});
    }
  }

  Outcome step(World& world, int action, Rng& rng) const override {
    const Point ahead = world.front();
    const Cell before = world.contains(ahead) ? world.get(ahead) : kWall;
    for (std::size_t i = 0; i < world.obstacles.size(); i += 2) {
      const Point old{world.obstacles[i], world.obstacles[i + 1]};
      const Point at = world.find_place(rng, {old.x - 1, old.y - 1}, {3, 3}, kMaxTries, [](Point) { return false; });
      if (at == kNowhere) continue;  // hemmed in
      world.set(at, kObstacle);
      world.set(old, kEmpty);
      world.obstacles[i] = at.x;
      world.obstacles[i + 1] = at.y;
    }
    Outcome outcome = world.act(action);
    // What stood there when the agent decided.
    if (action == kForward && before != kEmpty && type_of(before) != kGoalType) outcome = {-1.0, true};
    return outcome;
  }

 private:
  static constexpr Cell kObstacle = make(kBall, kBlue);
  static constexpr int kMaxTries = 100;
};

class Memory : public Task {
 public:
  void complete(Settings& settings) const override {
    complete_square(settings, 3, 5 * square(settings.size));
    if (settings.size % 2 == 0) {
      throw std::invalid_argument("size expected an odd number, got " + std::to_string(settings.size));
    }
  }

  void generate(const Settings& settings, World& world, Rng& rng) const override {
    const int width = world.width(), middle = world.height() / 2;
    world.surround();
    const int hallway_end = settings.random_length ? World::random_int(rng, 4, width - 2) : width - 3;
    world.horizontal_wall({1, middle - 2}, 4);
    world.horizontal_wall({1, middle + 2}, 4);
    world.set({4, middle - 1}, kWall);
    world.set({4, middle + 1}, kWall);
    world.horizontal_wall({5, middle - 1}, hallway_end - 5);
    world.horizontal_wall({5, middle + 1}, hallway_end - 5);
    for (int j = 0; j < world.height(); ++j) {
      if (j != middle) world.set({hallway_end, j}, kWall);
      world.set({hallway_end + 2, j}, kWall);
    }
    world.agent = {World::random_int(rng, 1, hallway_end + 1), middle};
    world.direction = 0;
    const bool is_ball = World::random_int(rng, 0, 2) == 1;
    world.set({1, middle - 1}, make(is_ball ? kBall : kKey, kGreen));
    const bool is_ball_above = World::random_int(rng, 0, 2) == 0;
    world.set({hallway_end + 1, middle - 2}, make(is_ball_above ? kBall : kKey, kGreen));
    world.set({hallway_end + 1, middle + 2}, make(is_ball_above ? kKey : kBall, kGreen));
    const Point above{hallway_end + 1, middle - 1}, below{hallway_end + 1, middle + 1};
    world.target = is_ball == is_ball_above ? above : below;
    world.other = is_ball == is_ball_above ? below : above;
  }

  Outcome step(World& world, int action, Rng&) const override {
    Outcome outcome = world.act(action == kPickUp ? kToggle : action);
    if (world.agent == world.target) outcome = {world.success(), true};
    if (world.agent == world.other) outcome = {0.0, true};
    return outcome;
  }
};

class LockedRoom : public Task {
 public:
  void complete(Settings& settings) const override { complete_square(settings, 3, 10 * settings.size); }
  int num_missions() const override { return kNumColors * kNumColors * kNumColors; }

  void generate(const Settings&, World& world, Rng& rng) const override {
    const int width = world.width(), height = world.height();
    world.surround();
    const int left = width / 2 - 2, right = width / 2 + 2;
    world.vertical_wall({left, 0}, height);
    world.vertical_wall({right, 0}, height);
    struct Room {
      Point top, door;
      int color;  // its place among the names
    };
    std::array<Room, 6> rooms;
    const Point size{left + 1, height / 3 + 1};
    for (int n = 0; n < 3; ++n) {
      const int y = n * (height / 3);
      world.horizontal_wall({0, y}, left);
      world.horizontal_wall({right, y}, width - right);
      rooms[2 * n] = {{0, y}, {left, y + 3}, 0};
      rooms[2 * n + 1] = {{right, y}, {right, y + 3}, 0};
    }
    const auto random_place = [&](const Room& room) {
      Point at;
      at.x = World::random_int(rng, room.top.x + 1, room.top.x + size.x - 1);
      at.y = World::random_int(rng, room.top.y + 1, room.top.y + size.y - 1);
      return at;
    };
    const int locked = World::random_int(rng, 0, 6);
    world.set(random_place(rooms[locked]), kGoal);
    std::vector<int> colors{0, 1, 2, 3, 4, 5};
    for (int i = 0; i < 6; ++i) {
      const auto drawn = colors.begin() + World::random_int(rng, 0, static_cast<int>(colors.size()));
      rooms[i].color = *drawn;
      colors.erase(drawn);
      world.set(rooms[i].door, make(kDoor, kColorsByName[rooms[i].color], i == locked ? kLocked : kClosed));
    }
    int key_room;
    do {
      key_room = World::random_int(rng, 0, 6);
    } while (key_room == locked);
    world.set(random_place(rooms[key_room]), make(kKey, kColorsByName[rooms[locked].color]));
    world.place_agent(rng, {left, 0}, {right - left, height});
    world.mission = (rooms[locked].color * kNumColors + rooms[key_room].color) * kNumColors + rooms[locked].color;
  }
};

class RedBlueDoors : public Task {
 public:
  void complete(Settings& settings) const override {
    check_range("size", settings.size, 3, kMaxSize / 2);
    settings.width = 2 * settings.size;
    settings.height = settings.size;
    if (settings.max_steps == 0) settings.max_steps = 20 * square(settings.size);
  }

  void generate(const Settings& settings, World& world, Rng& rng) const override {
    const int size = settings.size;
    world.surround();
    world.wall_rect({size / 2, 0}, {size, size});
    world.place_agent(rng, {size / 2, 0}, {size, size});
    world.target = {size / 2, World::random_int(rng, 1, size - 1)};
    world.set(world.target, make(kDoor, kRed, kClosed));
    world.other = {size / 2 + size - 1, World::random_int(rng, 1, size - 1)};
    world.set(world.other, make(kDoor, kBlue, kClosed));
  }

  Outcome step(World& world, int action, Rng&) const override {
    const auto is_open = [&](Point door) { return world.contains(door) && is_open_door(world.get(door)); };
    const bool was_red_open = is_open(world.target), was_blue_open = is_open(world.other);
    Outcome outcome = world.act(action);
    if (is_open(world.other)) {
      outcome = {was_red_open ? world.success() : 0.0, true};
    } else if (is_open(world.target) && was_blue_open) {
      outcome = {0.0, true};
    }
    return outcome;
  }
};

class Playground : public Task {
 public:
  void complete(Settings& settings) const override {
    settings.size = 19;
    complete_square(settings, 19, 100);
  }

  void generate(const Settings&, World& world, Rng& rng) const override {
    world.surround();
    const int room_width = world.width() / 3, room_height = world.height() / 3;
    for (int j = 0; j < 3; ++j) {
      for (int i = 0; i < 3; ++i) {
        const Point top{i * room_width, j * room_height}, end{top.x + room_width, top.y + room_height};
        if (i < 2) {
          world.vertical_wall({end.x, top.y}, room_height);
          const Point door{end.x, World::random_int(rng, top.y + 1, end.y - 1)};
          world.set(door, make(kDoor, World::random_color(rng), kClosed));
        }
        if (j < 2) {
          world.horizontal_wall({top.x, end.y}, room_width);
          const Point door{World::random_int(rng, top.x + 1, end.x - 1), end.y};
          world.set(door, make(kDoor, World::random_color(rng), kClosed));
        }
      }
    }
    world.place_agent(rng);
    for (int i = 0; i < 12; ++i) {
      const std::uint32_t type = kKey + World::random_int(rng, 0, 3);
      const Color color = World::random_color(rng);
      world.place(rng, make(type, color));
    }
  }
};

}  // namespace

const Task* find_maze_task(const std::string& name) {
  static const Empty empty;
  static const FourRooms four_rooms;
  static const DoorKey door_key;
  static const MultiRoom multi_room;
  static const Crossing crossing;
  static const LavaGap lava_gap;
  static const DistShift dist_shift;
  static const DynamicObstacles dynamic_obstacles;
  static const Memory memory;
  static const LockedRoom locked_room;
  static const RedBlueDoors red_blue_doors;
  static const Playground playground;
  if (name == "Empty") return &empty;
  if (name == "FourRooms") return &four_rooms;
  if (name == "DoorKey") return &door_key;
  if (name == "MultiRoom") return &multi_room;
  if (name == "Crossing") return &crossing;
  if (name == "LavaGap") return &lava_gap;
  if (name == "DistShift") return &dist_shift;
  if (name == "DynamicObstacles") return &dynamic_obstacles;
  if (name == "Memory") return &memory;
  if (name == "LockedRoom") return &locked_room;
  if (name == "RedBlueDoor") return &red_blue_doors;
  if (name == "Playground") return &playground;
  return nullptr;
}

}  // namespace minigrid
