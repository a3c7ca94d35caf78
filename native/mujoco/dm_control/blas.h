// Dot products as numpy's BLAS adds them up: with fused multiply-adds or without, depending on the CPU and the kernel.
//
// Python asks numpy which it is before an env is made (envfleet/families/dm_control/models.py). Normalized orientations
// are where an episode starts: a last bit that differs there grows into another trajectory.
#pragma once

#include <cmath>

namespace envfleet::dm_control {

// Whether a kernel fuses: vector . vector, vector . matrix, matrix . matrix.
struct FusedKernels {
  bool dot = true, gemv = true, gemm = true;
};
// Written once, before the first env is made.
inline FusedKernels fused_kernels;

inline double multiply_add(double a, double b, double sum, bool is_fused) {
  return is_fused ? std::fma(a, b, sum) : sum + a * b;
}

// np.dot(a, b) of a few values.
inline double dot(const double* a, const double* b, int count) {
  double sum = 0;
  for (int i = 0; i < count; ++i) sum = multiply_add(a[i], b[i], sum, fused_kernels.dot);
  return sum;
}

// np.linalg.norm(values).
inline double norm(const double* values, int count) { return std::sqrt(dot(values, values, count)); }

// vector.dot(matrix): a vector of the world in the frame of a body.
inline double* rotate(const double* vector, const double* matrix, double* to, int count = 3) {
  for (int column = 0; column < count; ++column) {
    double sum = 0;
    for (int row = 0; row < 3; ++row) sum = multiply_add(vector[row], matrix[3 * row + column], sum, fused_kernels.gemv);
    *to++ = sum;
  }
  return to;
}

// The same for one of several vectors, which numpy multiplies as a matrix.
inline double* rotate_row(const double* vector, const double* matrix, double* to) {
  for (int column = 0; column < 3; ++column) {
    double sum = 0;
    for (int row = 0; row < 3; ++row) sum = multiply_add(vector[row], matrix[3 * row + column], sum, fused_kernels.gemm);
    *to++ = sum;
  }
  return to;
}

}  // namespace envfleet::dm_control
