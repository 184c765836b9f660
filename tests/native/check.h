// What the native tests need of a framework: cases that register themselves, checks that say both values, and a
// main that runs all or those whose name contains an argument. A failed check ends its case, not the others.
#pragma once

#include <cstdio>
#include <cstring>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

namespace check {

struct Failure : std::exception {};

struct Case {
    const char* name;
    void (*body)();
};

inline std::vector<Case>& cases() {
    static std::vector<Case> all;
    return all;
}

struct Register {
    Register(const char* name, void (*body)()) { cases().push_back({name, body}); }
};

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
    fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
    throw Failure();
}

template <typename A, typename B>
void equal(const A& a, const B& b, const char* text, const char* file, int line) {
    if (a == b) return;
    std::ostringstream what;
    what << text << ": " << a << " is not " << b;
    fail(file, line, what.str());
}

inline int run(int argc, char** argv) {
    int failed = 0, passed = 0;
    for (const Case& one : cases()) {
        if (argc > 1 && strstr(one.name, argv[1]) == nullptr) continue;
        try {
            one.body();
            ++passed;
        } catch (const Failure&) {
            fprintf(stderr, "FAILED %s\n", one.name);
            ++failed;
        }
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0 || passed == 0;
}

}  // namespace check

#define CASE(name)                                              \
    static void name();                                         \
    static const check::Register register_##name(#name, &name); \
    static void name()
#define CHECK(condition) ((condition) ? void() : check::fail(__FILE__, __LINE__, #condition))
#define CHECK_EQUAL(a, b) check::equal((a), (b), #a " == " #b, __FILE__, __LINE__)
