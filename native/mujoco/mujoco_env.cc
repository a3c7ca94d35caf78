#include "mujoco_env.h"

#include <stdexcept>

namespace envfleet::mujoco {

namespace {

constexpr int kNoCamera = -2;  // as envfleet/families/mujoco/__init__.py has it
constexpr std::int64_t kLargestPicture = 1 << 24;

}  // namespace

Params with_common_params(const Task& task, const Params& own) {
  Params all;
  if (task.version != 4) {
    all = {
        {"xml_file", task.xml_file, "the model: a path, or the name of one of Gymnasium's files"},
        {"frame_skip", task.frame_skip, "substeps of the simulation in a step"},
        {"default_camera_config", "", "attributes of mjvCamera, as JSON; empty: the env's own"},
    };
  }
  const Params shared = {
      {"xml_stamp", "", "what xml_file was when the pool was made; envfleet sets it"},
      {"post_constraint", !is_of_mujoco_py(task.version),
       "compute the contact forces after a step; false leaves them as they are"},
      {"width", 480, "of a picture, in pixels"},
      {"height", 480, "of a picture, in pixels"},
      {"camera_id", kNoCamera, "the camera that draws; -1: the free one, -2: none given"},
      {"camera_name", "", "the camera that draws, by its name"},
      {"max_geom", 1000, "the most geoms in a picture"},
      {"visual_options", "", "flags of mjvOption, as JSON"},
  };
  all.insert(all.end(), own.begin(), own.end());
  all.insert(all.end(), shared.begin(), shared.end());
  return all;
}

Range::Range(const Config& config, const char* name) {
  const std::vector<double> pair = config.reals(name);
  if (pair.size() != 2) {
    throw std::invalid_argument(std::string(name) + " expected a pair (low, high), got " + std::to_string(pair.size()) +
                                " numbers");
  }
  low = pair[0];
  high = pair[1];
}

double checked_scale(const Config& config, const char* name) {
  const double scale = config.real(name);
  if (!(scale >= 0) || std::isinf(scale)) {
    throw std::invalid_argument(std::string(name) + " expected a finite number >= 0, got " + std::to_string(scale));
  }
  return scale;
}

void check_pictures(const Model& model, const Config& config) {
  for (const char* name : {"width", "height", "max_geom"}) {
    const std::int64_t size = config.integer(name);
    if (size < 1 || size > kLargestPicture) {
      throw std::invalid_argument(std::string(name) + " expected 1 to " + std::to_string(kLargestPicture) + ", got " +
                                  std::to_string(size));
    }
  }
  const std::int64_t camera = config.integer("camera_id");
  if (camera < kNoCamera || camera >= model->ncam) {
    throw std::invalid_argument("camera_id expected -1 (the free one) or a number below " + std::to_string(model->ncam) +
                                ", the cameras of " + model.path() + ", got " + std::to_string(camera));
  }
  if (camera != kNoCamera && !config.text("camera_name").empty()) {
    throw std::invalid_argument("camera_id and camera_name expected one of the two, got both");
  }
}

Space action_space(const Model& model) {
  std::vector<double> low, high;
  for (int i = 0; i < model->nu; ++i) {
    const double* range = model->actuator_ctrlrange + 2 * i;
    // Without a range MuJoCo stores zeros and takes any control.
    const bool is_unbounded = model->actuator_ctrllimited[i] == 0 && range[0] == 0 && range[1] == 0;
    low.push_back(is_unbounded ? -infinity : static_cast<float>(range[0]));
    high.push_back(is_unbounded ? infinity : static_cast<float>(range[1]));
  }
  return box<float>(std::move(low), std::move(high));
}

}  // namespace envfleet::mujoco
