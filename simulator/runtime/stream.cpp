#include "runtime/stream.h"
#include <algorithm>
#include <vector>
#include "abi/runtime.h"
#include "calls.h"
#include "knobs.h"
#include "npusim.h"
#include "runtime/devices.h"
#include "tasks.h"

namespace {

constexpr int32_t kDefaultStream = 0, kFirstStream = 2;
enum : int { STREAM_IDLE = 0, STREAM_BUSY = 1 };  // what rtStreamQuery says

struct DeviceStreams {
    std::mutex lock;
    std::vector<Stream*> all;
    Stream* standard = nullptr;
    std::atomic<uint32_t> task{0};  // A5 counts tasks over all streams
};
DeviceStreams* streams_of(int32_t device) {
    static auto* const all = new DeviceStreams[NPUSIM_MOST_DEVICES];
    return &all[device];
}
std::atomic<int32_t> g_next_id{kFirstStream};

bool is_asynchronous() {
    static const bool is = npusim_knob(Knob::ASYNC) != 0;
    return is;
}

}  // namespace

Stream::~Stream() {
    {
        const std::lock_guard<std::mutex> hold(lock_);
        is_ending_ = true;
        changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
}

void Stream::work() {
    adopt_device(device);
    std::unique_lock<std::mutex> hold(lock_);
    for (;;) {
        changed_.wait(hold, [this] { return is_ending_ || !queue_.empty(); });
        if (queue_.empty()) return;
        std::function<void()> next = std::move(queue_.front());
        queue_.pop_front();
        is_busy_ = true;
        hold.unlock();
        next();
        next = nullptr;  // what it holds goes before the stream counts as idle
        hold.lock();
        is_busy_ = false;
        changed_.notify_all();
    }
}

void Stream::run(std::function<void()> work) {
    if (!is_asynchronous()) return work();
    const std::lock_guard<std::mutex> hold(lock_);
    if (!thread_.joinable()) thread_ = std::thread([this] { this->work(); });
    queue_.push_back(std::move(work));
    changed_.notify_all();
}

void Stream::synchronise() {
    std::unique_lock<std::mutex> hold(lock_);
    changed_.wait(hold, [this] { return queue_.empty() && !is_busy_; });
}

bool Stream::is_idle() {
    const std::lock_guard<std::mutex> hold(lock_);
    return queue_.empty() && !is_busy_;
}

uint32_t Stream::next_task() {
    if (npusim_is_a5()) return ++streams_of(device)->task;
    return ++task_ & 0xffff;
}

Stream& stream_of(void* handle) {
    if (handle != nullptr) return *static_cast<Stream*>(handle);
    const int32_t device = current_device() < 0 ? 0 : current_device();
    DeviceStreams& streams = *streams_of(device);
    const std::lock_guard<std::mutex> hold(streams.lock);
    if (streams.standard == nullptr) {
        streams.standard = new Stream(kDefaultStream, device);
        streams.all.push_back(streams.standard);
    }
    return *streams.standard;
}

void synchronise_streams(int32_t device) {
    DeviceStreams& streams = *streams_of(device);
    std::vector<Stream*> all;
    {
        const std::lock_guard<std::mutex> hold(streams.lock);
        all = streams.all;
    }
    for (Stream* stream : all) stream->synchronise();
}

void npusim_stream_run(void* stream, void (*function)(void*), void* context) {
    stream_of(stream).run([=] { function(context); });
}

rtError_t rtStreamCreate(void** stream, int32_t) {
    SIM_CALL(RT_CONTEXT_NULL);
    const int32_t device = current_device();
    if (device < 0) return RT_CONTEXT_NULL;
    auto* const fresh = new Stream(g_next_id++, device);
    fresh->own_memory = take_stream_memory(device);
    DeviceStreams& streams = *streams_of(device);
    const std::lock_guard<std::mutex> hold(streams.lock);
    streams.all.push_back(fresh);
    *stream = fresh;
    npusim_trace("rtStreamCreate dev=%d id=%d -> %p", device, fresh->id, static_cast<void*>(fresh));
    return RT_OK;
}

rtError_t rtStreamDestroy(void* handle) {
    SIM_CALL(RT_PARAM_INVALID);
    if (handle == nullptr) return RT_PARAM_INVALID;
    auto* const stream = static_cast<Stream*>(handle);
    stream->synchronise();
    DeviceStreams& streams = *streams_of(stream->device);
    {
        const std::lock_guard<std::mutex> hold(streams.lock);
        streams.all.erase(std::remove(streams.all.begin(), streams.all.end(), stream), streams.all.end());
    }
    give_back_stream_memory(stream->own_memory);
    delete stream;
    return RT_OK;
}

rtError_t rtStreamSynchronize(void* stream) {
    SIM_CALL(RT_PARAM_INVALID);
    stream_of(stream).synchronise();
    return RT_OK;
}

rtError_t rtStreamQuery(void* stream) { return stream_of(stream).is_idle() ? STREAM_IDLE : STREAM_BUSY; }

rtError_t rtGetStreamId(void* stream, int32_t* id) {
    *id = stream_of(stream).id;
    return RT_OK;
}
