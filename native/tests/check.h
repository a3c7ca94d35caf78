// The tests' own framework: TEST, CHECK and CHECK_THROWS.
//
// A test file registers its tests with TEST(name) and is linked with check_main.cc, which
// runs them all, or those whose names are given as arguments.
//
// Thread safety: CHECK from any thread. A failed check ends the process: the threads of an
// engine that misbehaves cannot be unwound, and a core dump shows all of them.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

namespace check {

struct Test {
  const char* name;
  void (*run)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
  std::abort();
}

template <class A, class B>
void equal(const A& got, const B& expected, const char* got_text, const char* expected_text, const char* file, int line) {
  if (got == expected) return;
  std::ostringstream what;
  what << "expected " << got_text << " == " << expected_text << ", got " << +got << " and " << +expected;
  fail(file, line, what.str());
}

}  // namespace check

#define TEST(name)                                                                               \
  static void test_##name();                                                                     \
  static const bool registered_##name = (check::tests().push_back({#name, &test_##name}), true); \
  static void test_##name()

#define CHECK(condition)                                                       \
  do {                                                                         \
    if (!(condition)) check::fail(__FILE__, __LINE__, "expected " #condition); \
  } while (false)

#define CHECK_EQUAL(got, expected) check::equal(got, expected, #got, #expected, __FILE__, __LINE__)

// The message must hold `part`: an error that says something else is another error.
#define CHECK_THROWS(expression, exception, part)                                                                 \
  do {                                                                                                            \
    std::string thrown_what;                                                                                      \
    try {                                                                                                         \
      expression;                                                                                                 \
    } catch (const exception& thrown) {                                                                           \
      thrown_what = thrown.what();                                                                                \
    }                                                                                                             \
    if (thrown_what.find(part) == std::string::npos) {                                                            \
      check::fail(__FILE__, __LINE__, "expected " #expression " to throw '" part "', got '" + thrown_what + "'"); \
    }                                                                                                             \
  } while (false)
