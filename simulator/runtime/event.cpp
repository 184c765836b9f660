// Events: recorded on a stream, waited for by others. One may be destroyed while records or waits of it are queued:
// those keep what it stands for alive.
#include "runtime/event.h"
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include "abi/runtime.h"
#include "calls.h"
#include "runtime/stream.h"

namespace {

struct Event {
    std::mutex lock;
    std::condition_variable changed;
    uint64_t recorded = 0, done = 0;  // numbers of records
    int64_t time_ns = 0;              // of the last record done
};
using EventPointer = std::shared_ptr<Event>;

EventPointer& event_of(void* handle) { return *static_cast<EventPointer*>(handle); }

int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

}  // namespace

rtError_t rtEventCreate(void** event) {
    SIM_CALL(RT_PARAM_INVALID);
    *event = new EventPointer(new Event);
    return RT_OK;
}

rtError_t rtEventDestroy(void* event) {
    SIM_CALL(RT_PARAM_INVALID);
    delete static_cast<EventPointer*>(event);
    return RT_OK;
}

rtError_t rtEventRecord(void* handle, void* stream) {
    SIM_CALL(RT_PARAM_INVALID);
    EventPointer event = event_of(handle);
    uint64_t number = 0;
    {
        const std::lock_guard<std::mutex> hold(event->lock);
        number = ++event->recorded;
    }
    stream_of(stream).run([event, number] {
        const std::lock_guard<std::mutex> hold(event->lock);
        if (number > event->done) event->done = number;
        event->time_ns = now_ns();
        event->changed.notify_all();
    });
    return RT_OK;
}

rtError_t rtEventReset(void*, void*) { return RT_OK; }

rtError_t rtEventSynchronize(void* handle) {
    SIM_CALL(RT_PARAM_INVALID);
    EventPointer event = event_of(handle);
    std::unique_lock<std::mutex> hold(event->lock);
    event->changed.wait(hold, [&] { return event->done >= event->recorded; });
    return RT_OK;
}

rtError_t rtStreamWaitEvent(void* stream, void* handle) {
    SIM_CALL(RT_PARAM_INVALID);
    EventPointer event = event_of(handle);
    uint64_t number = 0;
    {
        const std::lock_guard<std::mutex> hold(event->lock);
        number = event->recorded;
    }
    stream_of(stream).run([event, number] {
        std::unique_lock<std::mutex> hold(event->lock);
        event->changed.wait(hold, [&] { return event->done >= number; });
    });
    return RT_OK;
}

int npusim_event_is_complete(void* handle) {
    EventPointer event = event_of(handle);
    const std::lock_guard<std::mutex> hold(event->lock);
    return event->done >= event->recorded;
}

int64_t npusim_event_ns(void* handle) {
    EventPointer event = event_of(handle);
    const std::lock_guard<std::mutex> hold(event->lock);
    return event->time_ns;
}
