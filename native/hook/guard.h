// The recursion guard: a hook that is entered while this thread is already inside one, or inside a call that
// we make ourselves into an allocator or runtime, returns to the original at once.
#pragma once

namespace memscope {

// initial-exec TLS (see CMakeLists): reading it never allocates.
extern __thread int t_inside;

class Guard {
public:
    Guard() noexcept : entered_(t_inside == 0) { ++t_inside; }
    ~Guard() { --t_inside; }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;
    explicit operator bool() const noexcept { return entered_; }

private:
    bool entered_;
};

}  // namespace memscope
