#include "engine/row_checks.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "engine/finite.h"
#include "envfleet/spec.h"

namespace envfleet::engine {

namespace {

constexpr const char* kExpected = "expected finite numbers, since check_finite is set";

double number_at(std::int32_t dtype, const char* row, std::int64_t index) {
  if (dtype == EF_FLOAT64) {
    double number;
    std::memcpy(&number, row + index * static_cast<std::int64_t>(sizeof number), sizeof number);
    return number;
  }
  float number;
  std::memcpy(&number, row + index * static_cast<std::int64_t>(sizeof number), sizeof number);
  return number;
}

}  // namespace

RowChecks::RowChecks(const ef_spec& spec, bool with_finals)
    : structure_(static_cast<ef_structure>(spec.structure)),
      with_finals_(with_finals),
      obs_(columns_of(spec.obs, spec.num_obs)),
      info_(columns_of(spec.info, spec.num_info)) {}

std::vector<RowChecks::Column> RowChecks::columns_of(const ef_array* arrays, std::int32_t count) {
  std::vector<Column> columns;
  for (std::int32_t i = 0; i < count; ++i) {
    std::int64_t num_elements = 1;
    for (std::int32_t axis = 0; axis < arrays[i].ndim; ++axis) num_elements *= arrays[i].shape[axis];
    columns.push_back({&arrays[i], num_elements, num_elements * size_of(arrays[i].dtype)});
  }
  return columns;
}

bool RowChecks::accepts(const ef_rows& rows, std::int64_t begin, std::int64_t end) const {
  if (!are_finite_doubles(rows.reward + begin, end - begin)) return false;
  for (std::size_t k = 0; k < obs_.size(); ++k) {
    const char* first = static_cast<const char*>(rows.obs[k]) + obs_[k].row_bytes * begin;
    if (!are_finite(obs_[k].array->dtype, first, obs_[k].num_elements * (end - begin))) return false;
  }
  return true;
}

RowChecks::Finding RowChecks::find(const ef_rows& rows, std::int64_t row) const {
  Finding finding;
  const bool is_final = has_final(rows, row);
  if (!is_final && rows.elapsed_step[row] == 0) finding.method = EF_IN_RESET;
  if (!is_finite(rows.reward[row])) {
    std::snprintf(finding.what, sizeof finding.what, "reward is %s, %s", name_of_non_finite(rows.reward[row]), kExpected);
    return finding;
  }
  if (is_final && find_in(rows.final_obs, row, finding.what)) return finding;
  if (is_final) finding.method = EF_IN_RESET;  // the row beside it is the first one of the next episode
  find_in(rows.obs, row, finding.what);
  return finding;
}

bool RowChecks::find_in(void* const* base, std::int64_t row, char* what) const {
  for (std::size_t k = 0; k < obs_.size(); ++k) {
    const auto& [array, num_elements, row_bytes] = obs_[k];
    const char* own = static_cast<const char*>(base[k]) + row_bytes * row;
    if (are_finite(array->dtype, own, num_elements)) continue;
    std::int64_t element = 0;
    while (is_finite(number_at(array->dtype, own, element))) ++element;
    char member[256] = "";
    if (structure_ == EF_DICT) std::snprintf(member, sizeof member, "['%s']", array->name);
    if (structure_ == EF_TUPLE) std::snprintf(member, sizeof member, "[%zu]", k);
    char index[32 * ENVFLEET_MAX_NDIM] = "";
    std::int64_t rest = element, stride = num_elements;
    for (std::int32_t axis = 0, length = 0; axis < array->ndim; ++axis) {
      stride /= array->shape[axis];
      length += std::snprintf(index + length, sizeof index - length, "%s%lld", axis == 0 ? "[" : ", ",
                              static_cast<long long>(rest / stride));
      rest %= stride;
      if (axis + 1 == array->ndim) std::snprintf(index + length, sizeof index - length, "]");
    }
    std::snprintf(what, ENVFLEET_ERROR_SIZE, "observation%s%s is %s, %s", member, index,
                  name_of_non_finite(number_at(array->dtype, own, element)), kExpected);
    return true;
  }
  return false;
}

void RowChecks::clear(const ef_rows& rows, std::int64_t row, ef_method method) const {
  const bool was_final = has_final(rows, row);
  const auto clear_all = [&](const std::vector<Column>& columns, void* const* base) {
    for (std::size_t k = 0; k < columns.size(); ++k) {
      std::memset(static_cast<char*>(base[k]) + columns[k].row_bytes * row, 0, columns[k].row_bytes);
    }
  };
  clear_all(obs_, rows.obs);
  clear_all(info_, rows.info);
  rows.reward[row] = 0.0;
  rows.terminated[row] = rows.truncated[row] = 0;
  // A step that fails is not counted.
  const std::int32_t counted = was_final ? rows.final_elapsed_step[row] : rows.elapsed_step[row];
  rows.elapsed_step[row] = method == EF_IN_RESET ? 0 : std::max(counted - 1, 0);
}

}  // namespace envfleet::engine
