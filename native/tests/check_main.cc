#include <cstring>

#include "tests/check.h"

int main(int argc, char** argv) {
  int num_run = 0;
  for (const check::Test& test : check::tests()) {
    bool is_asked = argc == 1;
    for (int i = 1; i < argc; ++i) is_asked |= std::strcmp(argv[i], test.name) == 0;
    if (!is_asked) continue;
    // Before the test, and flushed: of a test that hangs or crashes this line is all there is.
    std::printf("%s\n", test.name);
    std::fflush(stdout);
    test.run();
    ++num_run;
  }
  std::printf("%d tests passed\n", num_run);
  return num_run > 0 ? 0 : 1;
}
