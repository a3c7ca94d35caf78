// A file's bytes as a numpy array.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

namespace envfleet::bindings {

// Shared with every process that maps the same file. Unlike Python's mmap it holds no descriptor of its own.
nanobind::object map_file(int fd, std::int64_t num_bytes);

}  // namespace envfleet::bindings
