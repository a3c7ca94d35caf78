#include "mujoco_env.h"

#include <stdexcept>

namespace envfleet::mujoco {

Params with_shared_params(Params own) {
  const Params shared = {
      {"xml_stamp", "", "what xml_file was when the pool was made; envfleet sets it"},
      {"post_constraint", true, "compute the contact forces after a step; false leaves them as they are"},
      {"width", 480, "of a picture, in pixels"},
      {"height", 480, "of a picture, in pixels"},
      {"camera_id", -2, "the camera that draws; -1: the free one, -2: none given"},
      {"camera_name", "", "the camera that draws, by its name"},
      {"max_geom", 1000, "the most geoms in a picture"},
      {"visual_options", "", "flags of mjvOption, as JSON"},
  };
  own.insert(own.end(), shared.begin(), shared.end());
  return own;
}

Params with_v5_params(const char* xml_file, int frame_skip, Params own) {
  Params all = {
      {"xml_file", xml_file, "the model: a path, or the name of one of Gymnasium's files"},
      {"frame_skip", frame_skip, "substeps of the simulation in a step"},
      {"default_camera_config", "", "attributes of mjvCamera, as JSON; empty: the env's own"},
  };
  all.insert(all.end(), own.begin(), own.end());
  return with_shared_params(std::move(all));
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

Space action_space(const Model& model) {
  std::vector<double> low, high;
  for (int i = 0; i < model->nu; ++i) {
    low.push_back(static_cast<float>(model->actuator_ctrlrange[2 * i]));
    high.push_back(static_cast<float>(model->actuator_ctrlrange[2 * i + 1]));
  }
  return box<float>(std::move(low), std::move(high));
}

}  // namespace envfleet::mujoco
