// Who offers one function under two names (halMemAlloc and halMemAllocInner, aclrtMalloc and aclrtMallocImpl) calls the
// second from the first. Both are hooked, since a caller may be bound to either; only the outermost call is told.
#pragma once

namespace memscope {

class Outermost {
public:
    explicit Outermost(int& depth) noexcept : depth_(depth), outermost_(depth == 0) { ++depth_; }
    ~Outermost() { --depth_; }
    Outermost(const Outermost&) = delete;
    Outermost& operator=(const Outermost&) = delete;
    explicit operator bool() const noexcept { return outermost_; }

private:
    int& depth_;
    const bool outermost_;
};

}  // namespace memscope
