// The parameters of an env type, the values of one env, and the spec that results.
//
// Thread safety: the result of params_of() is made at the first call and never changes.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "envfleet/abi.h"
#include "envfleet/env_concepts.h"
#include "envfleet/exceptions.h"
#include "envfleet/spec.h"

#pragma GCC visibility push(hidden)  // see env.h

namespace envfleet {

namespace detail {

// A deep copy of ef_values, so that an env can be rebuilt long after make().
class OwnedValues {
 public:
  OwnedValues(const ef_value* values, std::int32_t count) : values_(values, values + count), texts_(count), reals_(count) {
    for (std::int32_t i = 0; i < count; ++i) {
      if (values_[i].type == EF_TEXT) {
        texts_[i] = std::make_unique<std::string>(values_[i].text);
        values_[i].text = texts_[i]->c_str();
      } else if (values_[i].type == EF_REALS) {
        reals_[i] = std::make_unique<std::vector<double>>(values_[i].reals, values_[i].reals + values_[i].num_reals);
        values_[i].reals = reals_[i]->data();
      }
    }
  }
  const ef_value* data() const { return values_.data(); }

 private:
  std::vector<ef_value> values_;
  std::vector<std::unique_ptr<std::string>> texts_;
  std::vector<std::unique_ptr<std::vector<double>>> reals_;
};

struct MadeParams {
  Params values;
  std::string error;  // the text of what params() threw, or empty
};

template <class Env>
const MadeParams& made_params() {
  static const MadeParams& made = *new MadeParams([] {
    MadeParams result;
    if constexpr (HasParams<Env>) {
      // Called while the library is loaded, where an exception would end the process. params_of() throws it later.
      try {
        result.values = Params(Env::params());
      } catch (...) {
        report_thrown([&](const char* what) { result.error = std::string("params(): ") + what; });
      }
    }
    return result;
  }());  // never destroyed, like the types in env_type.h
  return made;
}

template <class Env>
const Params& params_of() {
  const MadeParams& made = made_params<Env>();
  if (!made.error.empty()) throw std::runtime_error(made.error);
  return made.values;
}

template <class Env>
Config config_of(const ef_value* values) {
  const Params& params = params_of<Env>();
  return Config(params.data(), static_cast<std::int32_t>(params.size()), values);
}

template <class Env>
const ef_spec* finish_spec(Spec& spec, const ef_value* values) {
  Env::spec(config_of<Env>(values), spec);
  return spec.finish(HasFields<Env> || HasSaveLoad<Env>, HasRender<Env>, HasLanes<Env>);
}

}  // namespace detail

}  // namespace envfleet

#pragma GCC visibility pop
