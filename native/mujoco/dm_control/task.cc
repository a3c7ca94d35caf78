#include "task.h"

namespace envfleet::dm_control {

void normalize(std::span<double> values) {
  const double length = norm(values.data(), static_cast<int>(values.size()));
  for (double& value : values) value /= length;
}

void randomize_joints(Physics& physics, RandomState& random) {
  const mjModel& model = physics.model();
  for (int joint = 0; joint < model.njnt; ++joint) {
    double* const position = physics.data().qpos + model.jnt_qposadr[joint];
    const double* const range = model.jnt_range + 2 * joint;
    const bool is_limited = model.jnt_limited[joint] != 0;
    switch (model.jnt_type[joint]) {
      case mjJNT_HINGE:
        *position = is_limited ? random.uniform(range[0], range[1]) : random.uniform(-kPi, kPi);
        break;
      case mjJNT_SLIDE:
        if (is_limited) *position = random.uniform(range[0], range[1]);
        break;
      case mjJNT_BALL:
        if (is_limited) {
          double axis[3];
          for (double& value : axis) value = random.randn();
          normalize(axis);
          mju_axisAngle2Quat(position, axis, random.random_sample() * range[1]);
        } else {
          for (int i = 0; i < 4; ++i) position[i] = random.randn();
          normalize({position, 4});
        }
        break;
      default:
        if (is_limited) break;
        for (int i = 3; i < 7; ++i) position[i] = random.random_sample();
        normalize({position + 3, 4});
    }
  }
}

}  // namespace envfleet::dm_control
