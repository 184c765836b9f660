// The driver's profiling channel: a queue of task records per device, read by whoever started it. As on a real
// driver a read returns at once, with nothing if there is nothing, and a queue that nobody reads loses records.
#include <pthread.h>
#include <time.h>
#include <cstring>
#include <deque>
#include <mutex>
#include "abi/profiling.h"
#include "ascend_hal/device_clock.h"
#include "ascend_hal/driver_state.h"
#include "calls.h"
#include "knobs.h"
#include "tasks.h"

namespace {

constexpr size_t kMostRecords = 1 << 16;

// How stream and task share the two 16-bit fields of an A2 record (hooks of the profiler decode all of these).
enum class Encoding { PLAIN, BIT12, BIT13, EXPANDED, EXPANDED15, EXPANDED_SQE };

struct Record {
    unsigned char bytes[sizeof(ProfRecordA2)];
};
struct Channel {
    bool is_on = false;
    std::deque<Record> records;
};
struct Channels {
    std::mutex lock;
    Channel of_device[NPUSIM_MOST_DEVICES];
};
Channels& channels() {
    static auto* const all = new Channels;
    return *all;
}

// A process may fork while another thread reads. The child starts its own channels.
const int g_fork_handlers = pthread_atfork([] { channels().lock.lock(); }, [] { channels().lock.unlock(); },
                                           [] {
                                               for (Channel& channel : channels().of_device) channel = Channel{};
                                               channels().lock.unlock();
                                           });

Encoding encoding() {
    static const Encoding chosen = [] {
        constexpr const char* kNames[] = {"plain", "bit12", "bit13", "expanded", "expanded15", "expanded_sqe"};
        const char* const text = npusim_knob_text(Knob::TASK_ENCODING);
        for (int i = 0; i < 6; ++i)
            if (strcmp(text, kNames[i]) == 0) return static_cast<Encoding>(i);
        return Encoding::PLAIN;
    }();
    return chosen;
}

size_t record_size() { return npusim_is_a5() ? sizeof(ProfRecordA5) : sizeof(ProfRecordA2); }

void encode(ProfRecordA2& record, uint16_t stream, uint16_t task) {
    switch (encoding()) {
        case Encoding::PLAIN:
        case Encoding::EXPANDED:
            record.stream = stream;
            record.task = task;
            break;
        case Encoding::BIT12:  // the task's upper three bits travel with the stream
            record.stream = static_cast<uint16_t>((stream & 0x7ff) | 0x1000 | (task & 0xe000));
            record.task = task & 0x1fff;
            break;
        case Encoding::BIT13:  // the low twelve bits change places
            record.stream = static_cast<uint16_t>((task & 0xfff) | 0x2000);
            record.task = static_cast<uint16_t>((stream & 0xfff) | (task & 0xf000));
            break;
        case Encoding::EXPANDED15:  // the low fifteen bits change places
            record.stream = static_cast<uint16_t>((task & 0x7fff) | 0x8000);
            record.task = static_cast<uint16_t>((stream & 0x7fff) | (task & 0x8000));
            break;
        case Encoding::EXPANDED_SQE:
            record.sqe_type = 3;
            record.stream = static_cast<uint16_t>(stream | 0x8000);
            record.task = task;
            break;
    }
}

Record make_record(const SimTask& task, int is_end) {
    Record bytes{};
    const uint64_t ticks = device_ticks();
    const uint32_t function = is_end ? PROF_TASK_END : PROF_TASK_BEGIN;
    if (npusim_is_a5()) {
        ProfRecordA5 record{};
        record.function = function;
        record.magic = PROF_RECORD_MAGIC;
        record.task = task.task;
        record.clock = ticks;
        memcpy(bytes.bytes, &record, sizeof record);
    } else {
        ProfRecordA2 record{};
        record.function = function;
        record.magic = PROF_RECORD_MAGIC;
        record.clock_low = static_cast<uint32_t>(ticks);
        record.clock_high = static_cast<uint32_t>(ticks >> 32);
        encode(record, task.stream, static_cast<uint16_t>(task.task));
        memcpy(bytes.bytes, &record, sizeof record);
    }
    return bytes;
}

}  // namespace

int npusim_is_a5(void) {
    static const bool is = strstr(npusim_knob_text(Knob::SOC), "950") != nullptr;
    return is;
}

int npusim_streams_expanded(void) { return encoding() >= Encoding::EXPANDED; }

void npusim_task_record(const SimTask* task, int is_end) {
    Channels& all = channels();
    const std::lock_guard<std::mutex> hold(all.lock);
    Channel& channel = all.of_device[task->device];
    if (channel.is_on && channel.records.size() < kMostRecords) channel.records.push_back(make_record(*task, is_end));
}

int prof_drv_start(unsigned device, unsigned channel, void* parameters) {
    SIM_CALL(-1);
    const auto* const start = static_cast<const ProfStart*>(parameters);
    if (device >= driver().devices || channel != PROF_CHANNEL_TASKS || start == nullptr) return -1;
    uint32_t wants_tasks = 0;
    if (start->user_data == nullptr || start->user_data_size < sizeof wants_tasks) return -1;
    memcpy(&wants_tasks, start->user_data, sizeof wants_tasks);
    npusim_trace("prof_drv_start dev=%u channel=%u tasks=%u", device, channel, wants_tasks);
    Channels& all = channels();
    const std::lock_guard<std::mutex> hold(all.lock);
    all.of_device[device].is_on = wants_tasks != 0;
    return 0;
}

int prof_stop(unsigned device, unsigned channel) {
    SIM_CALL(-1);
    if (device >= driver().devices || channel != PROF_CHANNEL_TASKS) return -1;
    npusim_trace("prof_stop dev=%u", device);
    Channels& all = channels();
    const std::lock_guard<std::mutex> hold(all.lock);
    all.of_device[device].is_on = false;
    return 0;
}

int prof_channel_read(unsigned device, unsigned channel, char* buffer, unsigned length) {
    SIM_CALL(-1);
    if (device >= driver().devices || channel != PROF_CHANNEL_TASKS || buffer == nullptr) return -1;
    if (const int64_t delay_ms = npusim_knob(Knob::CHANNEL_DELAY_MS); delay_ms > 0) {
        const timespec delay{delay_ms / 1000, delay_ms % 1000 * 1000000};
        nanosleep(&delay, nullptr);
    }
    Channels& all = channels();
    const std::lock_guard<std::mutex> hold(all.lock);
    std::deque<Record>& records = all.of_device[device].records;
    unsigned written = 0;
    while (!records.empty() && written + record_size() <= length) {
        memcpy(buffer + written, records.front().bytes, record_size());
        records.pop_front();
        written += static_cast<unsigned>(record_size());
    }
    return static_cast<int>(written);
}
