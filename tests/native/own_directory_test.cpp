// What a killed program leaves in /dev/shm goes with the next one; what is in use stays.
#include "own_directory.h"

#include <sys/wait.h>
#include <csignal>
#include <cstdio>
#include <string>

#include "check.h"

namespace {

const std::string kPrefix = "memscope-directory-test-" + std::to_string(getpid()) + "-";

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

// A process that makes a directory with a file in it and lives until it is killed. It tells the path when all is there.
pid_t start(std::string& path) {
    int ends[2];
    CHECK_EQUAL(pipe(ends), 0);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        const std::string made = own::make_directory(kPrefix);
        const int file = open((made + "/some.ring").c_str(), O_CREAT | O_WRONLY, 0600);
        const bool told = file >= 0 && write(ends[1], made.c_str(), made.size()) == static_cast<ssize_t>(made.size());
        close(ends[1]);
        if (!told) _exit(1);
        for (;;) pause();
    }
    close(ends[1]);
    char text[200];
    const ssize_t bytes = read(ends[0], text, sizeof text);
    close(ends[0]);
    CHECK(bytes > 0);
    path.assign(text, static_cast<std::size_t>(bytes));
    return child;
}

void end(pid_t child) {
    CHECK_EQUAL(kill(child, SIGKILL), 0);
    CHECK_EQUAL(waitpid(child, nullptr, 0), child);
}

}  // namespace

CASE(what_a_killed_process_left_is_removed_and_what_a_living_one_has_is_not) {
    std::string killed, living;
    const pid_t first = start(killed), second = start(living);
    CHECK(exists(killed + "/some.ring") && exists(living + "/some.ring"));
    end(first);
    CHECK(exists(killed));
    const std::string mine = own::make_directory(kPrefix);
    CHECK(!exists(killed));
    CHECK(exists(living + "/some.ring"));
    CHECK(exists(mine));
    end(second);
    own::remove_abandoned(kPrefix);
    CHECK(!exists(living));
    CHECK(exists(mine));
    own::remove_directory(mine);
}

CASE(a_forked_child_keeps_the_directory_of_its_parent_in_use) {
    int ends[2];
    CHECK_EQUAL(pipe(ends), 0);
    const pid_t parent = fork();
    CHECK(parent >= 0);
    if (parent == 0) {
        const std::string made = own::make_directory(kPrefix);
        const pid_t child = fork();
        if (child == 0) {
            const pid_t self = getpid();
            if (write(ends[1], &self, sizeof self) != sizeof self ||
                write(ends[1], made.c_str(), made.size()) != static_cast<ssize_t>(made.size()))
                _exit(1);
            for (;;) pause();
        }
        _exit(child < 0);
    }
    CHECK_EQUAL(waitpid(parent, nullptr, 0), parent);
    pid_t child = 0;
    char text[200];
    CHECK_EQUAL(read(ends[0], &child, sizeof child), static_cast<ssize_t>(sizeof child));
    const ssize_t bytes = read(ends[0], text, sizeof text);
    CHECK(bytes > 0);
    const std::string made(text, static_cast<std::size_t>(bytes));
    own::remove_abandoned(kPrefix);
    CHECK(exists(made));
    // Its death is not ours to wait for; the lock is gone when the kernel has closed its files.
    CHECK_EQUAL(kill(child, SIGKILL), 0);
    for (int i = 0; i < 2000 && exists(made); ++i) {
        own::remove_abandoned(kPrefix);
        usleep(1000);
    }
    CHECK(!exists(made));
    close(ends[0]);
    close(ends[1]);
}

int main(int argc, char** argv) {
    alarm(60);
    return check::run(argc, argv);
}
