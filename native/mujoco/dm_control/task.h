// Task: what a task of dm_control's suite adds to the simulation, and what the tasks share.
//
// Thread safety: one thread at a time.
#pragma once

#include <cmath>
#include <memory>
#include <numbers>
#include <span>
#include <string_view>
#include <vector>

#include "../numpy_sums.h"
#include "blas.h"
#include "envfleet/env.h"
#include "physics.h"
#include "rewards.h"

namespace envfleet::dm_control {

inline constexpr double kPi = std::numbers::pi;

// One array of a task's observation.
struct Observed {
  const char* name;
  std::vector<std::int64_t> shape;
};

class Task {
 public:
  explicit Task(Physics& physics) : physics_(physics) {}
  virtual ~Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  // The arrays of the observation, in their order.
  virtual std::vector<Observed> layout() const = 0;
  // Sets the state of an episode's start, after Physics::reset().
  virtual void start(RandomState& random) = 0;
  // Writes all arrays, one after the other.
  virtual void observe(double* to) const = 0;
  virtual double reward() const = 0;
  // Whether the episode ends here with a discount of 0.
  virtual bool is_terminated() const { return false; }
  // What start() leaves for later steps beside the simulation's state.
  virtual void save(StateWriter&) {}
  virtual void load(StateReader&) {}

 protected:
  double* write_positions(double* to, int first = 0) const {
    return std::copy(physics_.data().qpos + first, physics_.data().qpos + physics_.model().nq, to);
  }
  double* write_velocities(double* to) const { return std::copy_n(physics_.data().qvel, physics_.model().nv, to); }
  const double* sensor_values(int address) const { return physics_.data().sensordata + address; }
  double* write_sensors(double* to, std::span<const int> addresses) const {
    for (const int address : addresses) *to++ = physics_.data().sensordata[address];
    return to;
  }
  std::vector<int> sensors(std::initializer_list<const char*> names) const {
    std::vector<int> found;
    for (const char* name : names) found.push_back(physics_.sensor(name));
    return found;
  }
  double mean_small_control() const { return mean_tolerance(physics_.control(), kSmallControl); }
  bool is_colliding() const { return physics_.has_contacts(); }

  Physics& physics_;
};

// Elements of a 3x3 rotation matrix, by the axis of the world and that of the body.
enum MatrixElement { kXX = 0, kXZ = 2, kZX = 6, kZY = 7, kZZ = 8 };

inline double* subtract(const double* a, const double* b, double* to, int count = 3) {
  for (int i = 0; i < count; ++i) *to++ = a[i] - b[i];
  return to;
}

// np.linalg.norm(a - b).
inline double distance(const double* a, const double* b, int count = 3) {
  double difference[3];
  subtract(a, b, difference, count);
  return norm(difference, count);
}

// values / np.linalg.norm(values), in place.
void normalize(std::span<double> values);

// Limited joints: uniform within their range; hinges: uniform angles; ball and free joints: random orientations.
void randomize_joints(Physics& physics, RandomState& random);

// The task of a name such as "walker-run"; nullptr: not one of this kind.
using TaskFactory = std::unique_ptr<Task> (*)(std::string_view name, Physics& physics);
std::unique_ptr<Task> make_pole_task(std::string_view name, Physics& physics);
std::unique_ptr<Task> make_walker_task(std::string_view name, Physics& physics);
std::unique_ptr<Task> make_target_task(std::string_view name, Physics& physics);
std::unique_ptr<Task> make_arm_task(std::string_view name, Physics& physics);
std::unique_ptr<Task> make_quadruped_task(std::string_view name, Physics& physics);
std::unique_ptr<Task> make_dog_task(std::string_view name, Physics& physics);
std::unique_ptr<Task> make_lqr_task(std::string_view name, Physics& physics);

}  // namespace envfleet::dm_control
