// Runs part of a test in a process of its own, with its own knobs and its own simulated cards: the simulator reads a
// knob once, so the test program itself never calls it.
#pragma once

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>
#include "check.h"

namespace alone {

using Knobs = std::vector<std::pair<const char*, std::string>>;

// A directory for the state of the cards; removed at the end.
class Cards {
public:
    Cards() {
        char name[] = "/dev/shm/npusim-test-XXXXXX";
        CHECK(mkdtemp(name) != nullptr);
        directory_ = name;
    }
    ~Cards() {
        for (const char* file : {"/cards", "/opening"}) unlink((directory_ + file).c_str());
        rmdir(directory_.c_str());
    }
    Cards(const Cards&) = delete;
    Cards& operator=(const Cards&) = delete;
    const std::string& directory() const { return directory_; }

private:
    std::string directory_;
};

// Starts a process that runs `body` and exits with 0, or with 1 when a check failed.
inline pid_t start(const Cards& cards, const Knobs& knobs, const std::function<void()>& body) {
    fflush(nullptr);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child != 0) return child;
    setenv("NPUSIM_STATE", cards.directory().c_str(), 1);
    for (const auto& [name, value] : knobs) setenv(name, value.c_str(), 1);
    try {
        body();
    } catch (const check::Failure&) {
        _exit(1);
    }
    exit(0);
}

// How the process ended, as waitpid says.
inline int end_of(pid_t child) {
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    return status;
}

inline void run(const Knobs& knobs, const std::function<void()>& body) {
    const Cards cards;
    CHECK_EQUAL(end_of(start(cards, knobs, body)), 0);
}

// Whether `body` dies by a signal (a forked child of the caller runs it).
inline int signal_of(const std::function<void()>& body) {
    fflush(nullptr);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        for (const int fatal : {SIGSEGV, SIGBUS}) signal(fatal, SIG_DFL);  // a sanitizer would exit instead
        body();
        _exit(0);
    }
    const int status = end_of(child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

// One process tells another that it has come so far.
class Signal {
public:
    Signal() { CHECK(pipe(ends_) == 0); }
    ~Signal() {
        close(ends_[0]);
        close(ends_[1]);
    }
    Signal(const Signal&) = delete;
    Signal& operator=(const Signal&) = delete;
    void give() const { CHECK(write(ends_[1], "x", 1) == 1); }
    void await() const {
        pollfd end{ends_[0], POLLIN, 0};
        CHECK(poll(&end, 1, 20000) == 1);
        char byte;
        CHECK(read(ends_[0], &byte, 1) == 1);
    }

private:
    int ends_[2];
};

}  // namespace alone
