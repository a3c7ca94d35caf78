// Finds the inner loops of np.sin and np.cos and hands them to the engine.
#include "bindings.h"
#include "numpy_api.h"
#include "numpy_host.h"

// After numpy_api.h, which decides how numpy's C interface is imported.
#include <numpy/ufuncobject.h>

namespace nb = nanobind;

namespace envfleet::bindings {

namespace {

// The loop that takes and returns one value of this type.
engine::UfuncLoops loop_of(const nb::module_& numpy, const char* name, char type) {
  const nb::object ufunc = numpy.attr(name);
  if (!nb::isinstance(ufunc, numpy.attr("ufunc"))) return {};
  const auto& table = *reinterpret_cast<PyUFuncObject*>(ufunc.ptr());
  for (int i = 0; i < table.ntypes; ++i) {
    const char* types = table.types + static_cast<std::ptrdiff_t>(i) * table.nargs;
    if (types[0] == type && types[1] == type) return {table.functions[i], table.data == nullptr ? nullptr : table.data[i]};
  }
  return {};  // the C library's function serves instead
}

}  // namespace

void borrow_numpy_loops() {
  const nb::module_ numpy = nb::module_::import_("numpy");
  engine::use_numpy_loops(loop_of(numpy, "sin", NPY_DOUBLE), loop_of(numpy, "cos", NPY_DOUBLE),
                          loop_of(numpy, "sin", NPY_FLOAT), loop_of(numpy, "cos", NPY_FLOAT));
}

}  // namespace envfleet::bindings
