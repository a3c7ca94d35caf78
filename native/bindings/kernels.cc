// Image processing for envs that are written in Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <vector>

#include "bindings/bindings.h"
#include "bindings/numpy_arrays.h"
#include "bindings/python_calls.h"
#include "kernels/screen_stack.h"

namespace nb = nanobind;

namespace envfleet::bindings {

namespace {

using kernels::Resize;
using kernels::ScreenFormat;
using kernels::ScreenStack;
using kernels::Shown;

using Palette = nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Pixels = nb::ndarray<nb::numpy, std::uint8_t>;
using Memory = nb::ndarray<std::uint8_t, nb::c_contig, nb::device::cpu>;

constexpr int kLargePicture = 50'000;  // pixels: a console's screens are smaller, a game engine's larger

// A ScreenStack and the source of its screens: a callable that fills an array of shape (height, width).
class Screens {
 public:
  Screens(const ScreenFormat& format, const std::uint8_t* palette, nb::object take, bool may_use_simd)
      : stack(format, palette, may_use_simd), take_(std::move(take)) {}

  // Has the emulator copy its screen into one of the two screens.
  void take(int which) {
    npy_intp shape[] = {stack.format().raw_height, stack.format().raw_width};
    // A new array each time: it is a view of the calling thread's memory.
    nb::object array = nb::steal(PyArray_SimpleNewFromData(2, shape, NPY_UINT8, stack.screen(which)));
    if (!array.is_valid()) throw nb::python_error();
    nb::object answer = nb::steal(python([&] { return PyObject_CallOneArg(take_.ptr(), array.ptr()); }));
    if (!answer.is_valid()) throw nb::python_error();
  }

  // Releases the GIL for a large picture. For a small one, waiting for the GIL again would take longer than the work.
  void push(Shown shown, bool is_first = false) {
    const ScreenFormat& format = stack.format();
    if (format.raw_height * format.raw_width < kLargePicture) return stack.push(shown, is_first);
    const GilRelease released;
    stack.push(shown, is_first);
  }

  void move_stack(nb::object memory) {
    if (memory.is_none()) {
      stack.move_stack(nullptr);
    } else {
      Memory array;
      // No conversion: that would be a copy, which dies when this returns.
      if (!nb::try_cast(memory, array, false)) {
        throw nb::type_error("move_stack() expected a writable, contiguous uint8 array");
      }
      const ScreenFormat& format = stack.format();
      const std::size_t expected =
          static_cast<std::size_t>(format.num_frames) * format.num_planes * format.height * format.width;
      if (array.size() != expected) throw nb::value_error("move_stack() expected an array of the stack's size");
      stack.move_stack(array.data());
    }
    memory_ = std::move(memory);
  }

  // The owner of the stack's memory; None: this object.
  nb::handle memory() const { return memory_; }

  ScreenStack stack;

 private:
  nb::object take_;
  nb::object memory_ = nb::none();  // the array that holds the stack, if it is not this object's own
};

// Memory of the stack as an array that keeps it alive.
Pixels array_of(nb::handle owner, std::uint8_t* data, std::initializer_list<int> shape) {
  std::vector<std::size_t> sizes(shape.begin(), shape.end());
  return Pixels(data, sizes.size(), sizes.data(), owner);
}

ScreenStack& own(nb::handle self) { return nb::cast<Screens&>(self).stack; }

}  // namespace

void bind_kernels(nb::module_& module) {
  nb::class_<Screens>(module, "ScreenStack")
      .def(
          "__init__",
          [](Screens* self, nb::object take, int raw_height, int raw_width, int height, int width, int num_frames,
             Palette palette, bool is_area, bool may_use_simd) {
            if (raw_height < 1 || raw_width < 1 || height < 1 || width < 1 || num_frames < 1) {
              throw nb::value_error("ScreenStack expected sizes of at least 1");
            }
            if (palette.shape(1) != 256 || (palette.shape(0) != 1 && palette.shape(0) != 3)) {
              throw nb::value_error("ScreenStack expected a palette of shape (1, 256) or (3, 256)");
            }
            const auto num_planes = static_cast<int>(palette.shape(0));
            const Resize resize = is_area ? Resize::kArea : Resize::kLinear;
            const ScreenFormat format{raw_height, raw_width, height, width, num_planes, num_frames, resize};
            new (self) Screens(format, palette.data(), std::move(take), may_use_simd);
          },
          nb::arg("take"), nb::arg("raw_height"), nb::arg("raw_width"), nb::arg("height"), nb::arg("width"),
          nb::arg("num_frames"), nb::arg("palette"), nb::arg("is_area") = true, nb::arg("may_use_simd") = true)
      .def_prop_ro(
          "stack",
          [](nb::handle self) {
            const ScreenFormat& format = own(self).format();
            const int num_planes = format.num_planes * format.num_frames;
            const nb::handle memory = nb::cast<Screens&>(self).memory();
            return array_of(memory.is_none() ? self : memory, own(self).stack(), {num_planes, format.height, format.width});
          },
          nb::rv_policy::reference)  // the array has an owner already
      .def_prop_ro("pooled",
                   [](nb::handle self) {
                     const ScreenFormat& format = own(self).format();
                     return array_of(self, own(self).pooled(), {format.num_planes, format.raw_height, format.raw_width});
                   })
      .def_prop_ro("uses_simd", [](Screens& self) { return self.stack.uses_simd(); })
      .def("move_stack", &Screens::move_stack, nb::arg("memory").none())
      .def("take_before", [](Screens& self) { self.take(1); })
      .def("begin",
           [](Screens& self) {
             self.take(0);
             self.push(Shown::kLast, true);
           })
      .def("push_last",
           [](Screens& self) {
             self.take(0);
             self.push(Shown::kLast);
           })
      .def("push_both",
           [](Screens& self) {
             self.take(0);
             self.push(Shown::kBoth);
           })
      .def("push_before", [](Screens& self) { self.push(Shown::kBefore); })
      .def("push_nothing", [](Screens& self) { self.push(Shown::kNothing); })
      .def("begin_pooled", [](Screens& self) { self.push(Shown::kPooled, true); })
      .def("push_pooled", [](Screens& self) { self.push(Shown::kPooled); });
}

}  // namespace envfleet::bindings
