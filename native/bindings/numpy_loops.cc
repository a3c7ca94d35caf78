// Finds the inner loops of np.sin, np.cos and others and passes them to the engine.
#include "bindings/bindings.h"
#include "bindings/numpy_arrays.h"
#include "engine/numpy_host.h"

// After numpy_api.h, which decides how numpy's C interface is imported.
#include <numpy/ufuncobject.h>

namespace nb = nanobind;

namespace envfleet::bindings {

namespace {

// The loop that takes and returns values of this type.
engine::UfuncLoops loop_of(const nb::module_& numpy, const char* name, char type) {
  const nb::object ufunc = numpy.attr(name);
  if (!nb::isinstance(ufunc, numpy.attr("ufunc"))) return {};
  const auto& table = *reinterpret_cast<PyUFuncObject*>(ufunc.ptr());
  for (int i = 0; i < table.ntypes; ++i) {
    const char* types = table.types + static_cast<std::ptrdiff_t>(i) * table.nargs;
    if (types[0] == type && types[table.nargs - 1] == type)
      return {table.functions[i], table.data == nullptr ? nullptr : table.data[i]};
  }
  return {};  // the engine uses the C library's function instead
}

}  // namespace

void load_numpy_loops() {
  const nb::module_ numpy = nb::module_::import_("numpy");
  const struct {
    engine::Function function;
    const char* name;
    char type;
  } functions[] = {
      {engine::kSin, "sin", NPY_DOUBLE},         {engine::kCos, "cos", NPY_DOUBLE},
      {engine::kSinF, "sin", NPY_FLOAT},         {engine::kCosF, "cos", NPY_FLOAT},
      {engine::kExp, "exp", NPY_DOUBLE},         {engine::kLog1p, "log1p", NPY_DOUBLE},
      {engine::kTanh, "tanh", NPY_DOUBLE},       {engine::kArcsinh, "arcsinh", NPY_DOUBLE},
      {engine::kArctan2, "arctan2", NPY_DOUBLE},
  };
  for (const auto& own : functions) engine::use_numpy_loop(own.function, loop_of(numpy, own.name, own.type));
  engine::choose_sine();
}

}  // namespace envfleet::bindings
