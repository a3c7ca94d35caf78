# Finds out what the system has, and defines ENVFLEET_HAS_<NAME> as 0 or 1 for the sources.
#
# -DENVFLEET_FUTEX=OFF and so on leave out what the system has; ON fails to compile where it has not.
include(CheckCXXSourceCompiles)

add_library(envfleet_features INTERFACE)

function(envfleet_feature name description source)
  check_cxx_source_compiles("${source}" ENVFLEET_FOUND_${name})
  if(ENVFLEET_FOUND_${name})
    set(found ON)
  else()
    set(found OFF)
  endif()
  option(ENVFLEET_${name} "${description}" ${found})
  target_compile_definitions(envfleet_features INTERFACE ENVFLEET_HAS_${name}=$<BOOL:${ENVFLEET_${name}}>)
endfunction()

envfleet_feature(FUTEX "threads and processes sleep on futexes; else on condition variables, and processes poll"
  "#include <linux/futex.h>\n#include <sys/syscall.h>\nint main() { return SYS_futex + FUTEX_WAIT_BITSET; }")
envfleet_feature(MEMFD "shared memory is an anonymous file; else an unlinked temporary file"
  "#include <sys/mman.h>\nint main() { return memfd_create(\"\", MFD_CLOEXEC); }")
envfleet_feature(PIDFD "the end of a process is an event; else it is polled for"
  "#include <sys/syscall.h>\nint main() { return SYS_pidfd_open; }")
envfleet_feature(PDEATHSIG "the kernel kills workers whose parent ended; else a thread of theirs polls for it"
  "#include <sys/prctl.h>\nint main() { return PR_SET_PDEATHSIG; }")
envfleet_feature(AVX2 "image kernels and vector loops have versions for newer x86-64 processors; else the baseline alone"
  "#include <immintrin.h>
   __attribute__((target(\"avx2\"))) int sum(__m256i a) { return _mm256_movemask_epi8(_mm256_add_epi8(a, a)); }
   int main() { return __builtin_cpu_supports(\"avx2\") != 0; }")
