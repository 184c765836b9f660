// A stream does what it is given in order: at once on the caller's thread, or on a thread of its own (NPUSIM_ASYNC).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

class Stream {
public:
    Stream(int32_t id, int32_t device) : id(id), device(device) {}
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    void run(std::function<void()> work);
    void synchronise();
    bool is_idle();
    uint32_t next_task();

    const int32_t id;
    const int32_t device;  // logical
    void* own_memory = nullptr;

private:
    void work();

    std::mutex lock_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> queue_;
    bool is_busy_ = false, is_ending_ = false;
    std::thread thread_;
    std::atomic<uint32_t> task_{0};
};

// What a stream handle means: null is the default stream of the current device.
Stream& stream_of(void* handle);
// Waits for every stream of a logical device.
void synchronise_streams(int32_t device);
