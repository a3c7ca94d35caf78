/* The C interface between the engine and an environment.
 *
 * Everything that crosses the border between the engine and a plug-in is in this
 * file and is plain C: a plug-in built once works with every Python version and
 * every later engine with the same ENVFLEET_ABI_VERSION, whatever compiler built
 * either side. Authors of environments never use it directly: env.h turns a plain
 * struct into these tables.
 *
 * Thread safety: the engine calls the range functions from several threads at
 * once, never twice at a time for the same env. Every other function is called
 * from one thread with no range function running on the envs it names.
 *
 * Invariant: no exception crosses this border, in either direction: every function type
 * below is noexcept. Exceptions of an env are reported through ef_error or ef_rows.on_fault.
 *
 * Versions: any change of a struct or a signature raises ENVFLEET_ABI_VERSION. Both sides compare
 * it, and ENVFLEET_ABI_LAYOUT, before they read anything else: a plug-in that was built with other
 * headers is refused. The name of the exported function and the position of abi_version
 * never change, so that every version can refuse every other.
 */
#ifndef ENVFLEET_ABI_H_
#define ENVFLEET_ABI_H_

#include <stdint.h>

#ifdef __cplusplus
#define EF_NOEXCEPT noexcept
extern "C" {
#else
#define EF_NOEXCEPT
#endif

#define ENVFLEET_ABI_VERSION 3u
#define ENVFLEET_MAX_NDIM 8
#define ENVFLEET_ERROR_SIZE 1024

typedef enum ef_dtype {
  EF_BOOL = 0,
  EF_UINT8 = 1,
  EF_INT8 = 2,
  EF_UINT16 = 3,
  EF_INT16 = 4,
  EF_UINT32 = 5,
  EF_INT32 = 6,
  EF_UINT64 = 7,
  EF_INT64 = 8,
  EF_FLOAT32 = 9,
  EF_FLOAT64 = 10
} ef_dtype;

typedef enum ef_kind { EF_BOX = 0, EF_DISCRETE = 1, EF_MULTI_DISCRETE = 2, EF_MULTI_BINARY = 3 } ef_kind;

/* How the observation arrays are presented: alone, by name, or by position. */
typedef enum ef_structure { EF_SINGLE = 0, EF_DICT = 1, EF_TUPLE = 2 } ef_structure;

/* As in envfleet/core/autoreset.py; a test compares the two. step_rule.h says what each mode does. */
typedef enum ef_autoreset { EF_NEXT_STEP = 0, EF_SAME_STEP = 1, EF_DISABLED = 2 } ef_autoreset;

/* The state of an env between two calls. */
typedef enum ef_phase {
  EF_UNSTARTED = 0, /* never reset */
  EF_RUNNING = 1,
  EF_ENDED = 2, /* its last row was terminated or truncated */
  EF_BROKEN = 3 /* it raised; it is rebuilt at its next reset */
} ef_phase;

typedef enum ef_method { EF_IN_CONSTRUCTOR = 0, EF_IN_RESET = 1, EF_IN_STEP = 2, EF_IN_OBSERVE = 3 } ef_method;

/* On which rows an info column has a value. */
enum { EF_ON_STEP = 1, EF_ON_RESET = 2 };

typedef struct ef_array {
  const char* name;
  int32_t kind;  /* ef_kind */
  int32_t dtype; /* ef_dtype */
  int32_t ndim;
  int32_t presence; /* info columns: EF_ON_STEP | EF_ON_RESET */
  int64_t shape[ENVFLEET_MAX_NDIM];
  int64_t num_bounds; /* 1: low and high hold for every element; else one per element */
  const double* low;
  const double* high;
  int64_t start;       /* EF_DISCRETE: the first value */
  int64_t count;       /* EF_DISCRETE: how many values */
  const int64_t* nvec; /* EF_MULTI_DISCRETE: product(shape) counts */
} ef_array;

typedef struct ef_spec {
  int32_t structure; /* ef_structure of the observation */
  int32_t num_obs;
  const ef_array* obs;
  ef_array action;
  int32_t num_info;
  const ef_array* info;
  int32_t num_reset_options;
  const char* const* reset_options;
  int32_t max_episode_steps; /* 0: no limit */
  int32_t has_state;         /* get_state and set_state work */
  int32_t has_render;
  double reward_threshold; /* NaN: none */
} ef_spec;

typedef enum ef_value_type { EF_INTEGER = 0, EF_REAL = 1, EF_FLAG = 2, EF_TEXT = 3, EF_REALS = 4 } ef_value_type;

typedef struct ef_value {
  int32_t type; /* ef_value_type */
  int64_t integer;
  double real;
  const char* text;
  const double* reals;
  int64_t num_reals;
} ef_value;

typedef struct ef_param {
  const char* name;
  const char* doc;
  ef_value default_value;
} ef_param;

typedef struct ef_option {
  const char* name;
  double value;
} ef_option;

typedef struct ef_error {
  char message[ENVFLEET_ERROR_SIZE];
} ef_error;

/* The layout that numpy publishes as bitgen_t, so that numpy's own distributions
 * can draw from an env's generator. */
typedef struct ef_bitgen {
  void* state;
  uint64_t (*next_uint64)(void* state);
  uint32_t (*next_uint32)(void* state);
  double (*next_double)(void* state);
  uint64_t (*next_raw)(void* state);
} ef_bitgen;

/* What the engine lends to an env: numpy's distributions, and those of its functions that differ from the C
 * library's on some CPUs. The latter set out[i] = f(in[i]); in and out may be the same array. */
typedef struct ef_host {
  uint32_t abi_version;
  uint64_t layout; /* ENVFLEET_ABI_LAYOUT */
  double (*standard_normal)(ef_bitgen*) EF_NOEXCEPT;
  float (*standard_normal_f)(ef_bitgen*) EF_NOEXCEPT;
  double (*standard_exponential)(ef_bitgen*) EF_NOEXCEPT;
  double (*standard_gamma)(ef_bitgen*, double shape) EF_NOEXCEPT;
  double (*beta)(ef_bitgen*, double a, double b) EF_NOEXCEPT;
  int64_t (*poisson)(ef_bitgen*, double rate) EF_NOEXCEPT;
  void (*sin)(const double* in, double* out, int64_t count) EF_NOEXCEPT;
  void (*cos)(const double* in, double* out, int64_t count) EF_NOEXCEPT;
  void (*sin_f)(const float* in, float* out, int64_t count) EF_NOEXCEPT;
  void (*cos_f)(const float* in, float* out, int64_t count) EF_NOEXCEPT;
  void (*exp)(const double* in, double* out, int64_t count) EF_NOEXCEPT;
  void (*log1p)(const double* in, double* out, int64_t count) EF_NOEXCEPT;
  void (*tanh)(const double* in, double* out, int64_t count) EF_NOEXCEPT;
  void (*arcsinh)(const double* in, double* out, int64_t count) EF_NOEXCEPT;
  double (*arctan2)(double y, double x) EF_NOEXCEPT;
} ef_host;

/* One batch of rows. Columns are indexed by row; actions by env. */
typedef struct ef_rows {
  const int32_t* env_ids; /* row -> env; NULL: row r is env r */
  const void* actions;    /* row-major, indexed by env id */
  void* const* obs;       /* one pointer per column, to its row 0 */
  void* const* info;
  double* reward;
  uint8_t* terminated;
  uint8_t* truncated;
  int32_t* elapsed_step;
  void* const* final_obs; /* EF_SAME_STEP only: the last row of the episode that ended */
  void* const* final_info;
  int32_t* final_elapsed_step;
  const ef_option* options; /* reset only */
  int64_t num_options;
  /* what: the text of the exception, in any encoding */
  void (*on_fault)(void* context, int64_t row, int32_t env_id, int32_t method, const char* what) EF_NOEXCEPT;
  void* fault_context;
} ef_rows;

typedef struct ef_fleet_options {
  int32_t num_envs;
  int32_t autoreset; /* ef_autoreset */
  int32_t max_episode_steps;
  int32_t num_configs;            /* 1: all envs share configs[0]; else num_envs */
  const ef_value* const* configs; /* each num_params values, in the order of params; copied */
  uint8_t* phases;                /* num_envs ef_phase bytes, owned by the engine */
  const ef_host* host;
} ef_fleet_options;

typedef void (*ef_bytes_sink)(void* context, const void* data, int64_t size) EF_NOEXCEPT;
/* rgb: height * width * 3 bytes; height and width are positive. */
typedef void (*ef_frame_sink)(void* context, int32_t height, int32_t width, const uint8_t* rgb) EF_NOEXCEPT;
/* count < 0: a scalar. The visitor may read and write data in place. */
typedef void (*ef_field_visitor)(void* context, const char* name, int32_t dtype, int64_t count, void* data) EF_NOEXCEPT;

/* Functions with an ef_error return 0, or a pointer, when they succeed. */
typedef struct ef_env_type {
  const char* id;
  const char* doc;
  int32_t num_params;
  const ef_param* params;

  /* NULL on error. */
  const ef_spec* (*describe)(const ef_value* config, ef_error* error)EF_NOEXCEPT;
  void (*release_spec)(const ef_spec* spec) EF_NOEXCEPT;

  /* A fleet is num_envs envs of one type. NULL on error. */
  void* (*create)(const ef_fleet_options* options, ef_error* error)EF_NOEXCEPT;
  void (*destroy)(void* fleet) EF_NOEXCEPT;

  /* words: the seed as four little-endian 32-bit words, as numpy's SeedSequence takes them. */
  void (*seed)(void* fleet, int32_t env_id, const uint32_t words[4]) EF_NOEXCEPT;
  /* Destroys and constructs one env again. */
  int32_t (*rebuild)(void* fleet, int32_t env_id, ef_error* error) EF_NOEXCEPT;

  void (*reset_range)(void* fleet, const ef_rows* rows, int64_t begin, int64_t end) EF_NOEXCEPT;
  void (*step_range)(void* fleet, const ef_rows* rows, int64_t begin, int64_t end) EF_NOEXCEPT;
  /* Writes the current observations only. */
  void (*observe_range)(void* fleet, const ef_rows* rows, int64_t begin, int64_t end) EF_NOEXCEPT;

  int32_t (*get_state)(void* fleet, int32_t env_id, ef_bytes_sink sink, void* context, ef_error* error) EF_NOEXCEPT;
  int32_t (*set_state)(void* fleet, int32_t env_id, const void* data, int64_t size, ef_error* error) EF_NOEXCEPT;
  int32_t (*render)(void* fleet, int32_t env_id, ef_frame_sink sink, void* context, ef_error* error) EF_NOEXCEPT;
  int32_t (*visit_fields)(void* fleet, int32_t env_id, ef_field_visitor visit, void* context, ef_error* error) EF_NOEXCEPT;
  /* Called after a visitor has written a field. */
  int32_t (*fields_changed)(void* fleet, int32_t env_id, ef_error* error) EF_NOEXCEPT;
} ef_env_type;

/* What a plug-in's only exported function returns. */
typedef struct ef_plugin {
  uint32_t abi_version;
  uint32_t num_types;
  uint64_t layout; /* ENVFLEET_ABI_LAYOUT */
  const ef_env_type* const* types;
} ef_plugin;

typedef const ef_plugin* (*ef_plugin_entry)(void)EF_NOEXCEPT;
#define ENVFLEET_PLUGIN_SYMBOL "envfleet_plugin_v1"

/* The sizes of all structs as one number: it differs if a struct was changed without a new version. */
#define EF_ADD_SIZE(sizes, type) ((sizes) * 1000003u + (uint64_t)sizeof(type))
#define EF_SPEC_SIZES EF_ADD_SIZE(EF_ADD_SIZE((uint64_t)sizeof(ef_plugin), ef_spec), ef_array)
#define EF_VALUE_SIZES EF_ADD_SIZE(EF_ADD_SIZE(EF_ADD_SIZE(EF_SPEC_SIZES, ef_value), ef_param), ef_option)
#define EF_CALL_SIZES EF_ADD_SIZE(EF_ADD_SIZE(EF_ADD_SIZE(EF_VALUE_SIZES, ef_error), ef_rows), ef_fleet_options)
#define ENVFLEET_ABI_LAYOUT EF_ADD_SIZE(EF_ADD_SIZE(EF_ADD_SIZE(EF_CALL_SIZES, ef_host), ef_bitgen), ef_env_type)

#ifdef __cplusplus
}
#endif

#endif /* ENVFLEET_ABI_H_ */
