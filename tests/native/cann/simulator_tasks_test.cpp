// The simulated runtime: streams, what the profiler sees of tasks, and collectives between processes.
#include <sys/mman.h>
#include <atomic>
#include <cstring>
#include <ctime>
#include <map>
#include <numeric>
#include "abi/ascendcl.h"
#include "abi/hccl.h"
#include "alone.h"
#include "cann.h"
#include "check.h"

namespace {

struct Task {
    uint16_t stream;
    uint32_t task;
    std::string name;
};
std::vector<Task> g_tracked;
std::vector<uint64_t> g_expansions;
std::map<uint64_t, std::string> g_names;

uint64_t hash_id(const char* text, size_t length) {
    const uint64_t id = g_names.size() + 1;
    g_names[id] = std::string(text, length);
    return id;
}

int32_t compact_info(uint32_t, const void* data, uint32_t length) {
    MsprofCompactInfo info;
    CHECK_EQUAL(length, sizeof info);
    memcpy(&info, data, sizeof info);
    CHECK_EQUAL(info.magic, MSPROF_MAGIC);
    CHECK_EQUAL(info.level, MSPROF_LEVEL_RUNTIME);
    if (info.type == MSPROF_STREAM_EXPAND) g_expansions.push_back(info.stream_expand);
    if (info.type == MSPROF_TASK_TRACK)
        g_tracked.push_back({info.task.stream, info.task.task, g_names.at(info.task.kernel_name)});
    return 0;
}

void start_profiling() {
    CHECK_EQUAL(MsprofRegisterProfileCallback(MSPROF_HASH_ID, reinterpret_cast<void*>(hash_id), 8), 0);
    CHECK_EQUAL(MsprofRegisterProfileCallback(MSPROF_COMPACT_INFO, reinterpret_cast<void*>(compact_info), 8), 0);
    MsprofCommand command{};
    command.switches = MSPROF_TASK_TIME | MSPROF_RUNTIME_TRACE;
    command.type = MSPROF_START;
    CHECK_EQUAL(profSetProfCommand(&command, sizeof command), 0);
    uint32_t switches[11] = {1};
    ProfStart start{0, 20, 1, switches, 9 * sizeof(uint32_t)};
    CHECK_EQUAL(prof_drv_start(0, PROF_CHANNEL_TASKS, &start), 0);
}

// How a profiler reads stream and task of an A2 record.
Task decode(const ProfRecordA2& record, bool expanded) {
    const uint32_t stream = record.stream, task = record.task;
    const auto result = [](uint32_t stream_id, uint32_t task_id) {
        return Task{static_cast<uint16_t>(stream_id), task_id, {}};
    };
    if (expanded) {
        if (record.sqe_type == 3 || record.sqe_type == 4 || (stream & 0x8000) == 0)
            return result(stream & 0x7fff, task);
        return result(task & 0x7fff, (task & 0x8000) | (stream & 0x7fff));
    }
    if ((stream & 0x1000) != 0) return result(stream % 2048, (task & 0x1fff) | (stream & 0xe000));
    if ((stream & 0x2000) != 0) return result(task & 0xfff, (task & 0xf000) | (stream & 0xfff));
    return result(stream % 2048, task);
}

void launch(const char* name, void* stream, void (*run)(void*) = nullptr, void* context = nullptr) {
    SimKernel kernel{SIM_KERNEL_MAGIC, name, run, context};
    CHECK_EQUAL(aclrtLaunchKernelWithHostArgs(&kernel, 1, stream, nullptr, nullptr, 0, nullptr, 0), ACL_OK);
}

std::vector<ProfRecordA2> read_channel() {
    std::vector<ProfRecordA2> records(16);
    const int bytes = prof_channel_read(0, PROF_CHANNEL_TASKS, reinterpret_cast<char*>(records.data()),
                                        static_cast<unsigned>(records.size() * sizeof records[0]));
    records.resize(static_cast<size_t>(bytes) / sizeof records[0]);
    return records;
}

int64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

}  // namespace

CASE(every_encoding_of_stream_and_task_is_read_back) {
    for (const char* encoding : {"plain", "bit12", "bit13", "expanded", "expanded15", "expanded_sqe"}) {
        alone::run({{"NPUSIM_TASK_ENCODING", encoding}}, [encoding] {
            const bool expanded = strncmp(encoding, "expanded", 8) == 0;
            start_profiling();
            CHECK_EQUAL(aclrtSetDevice(0), ACL_OK);
            void* stream = nullptr;
            CHECK_EQUAL(aclrtCreateStream(&stream), ACL_OK);
            // Numbers that need all their bits: the 12,291st task.
            for (int i = 0; i < 12290; ++i) launch("filler", stream);
            while (!read_channel().empty()) {
            }
            launch("MatMul", stream);
            const Task launched = g_tracked.back();
            CHECK_EQUAL(launched.name, "MatMul");
            CHECK_EQUAL(launched.task, 12291u);
            int32_t id = 0;
            CHECK_EQUAL(aclrtStreamGetId(stream, &id), ACL_OK);
            CHECK_EQUAL(launched.stream, id);
            const std::vector<ProfRecordA2> records = read_channel();
            CHECK_EQUAL(records.size(), 2u);
            for (const ProfRecordA2& record : records) {
                CHECK_EQUAL(decode(record, expanded).stream, id);
                CHECK_EQUAL(decode(record, expanded).task, 12291u);
            }
            CHECK_EQUAL(records[0].function, PROF_TASK_BEGIN);
            CHECK_EQUAL(records[1].function, PROF_TASK_END);
            CHECK_EQUAL(g_expansions.size(), expanded ? 1u : 0u);
            CHECK_EQUAL(read_channel().size(), 0u);
            CHECK_EQUAL(prof_stop(0, PROF_CHANNEL_TASKS), 0);
            launch("unseen", stream);
            CHECK_EQUAL(read_channel().size(), 0u);
        });
    }
}

CASE(a5_numbers_tasks_over_all_streams_in_short_records) {
    alone::run({{"NPUSIM_SOC", "Ascend950PR_9599"}}, [] {
        start_profiling();
        CHECK_EQUAL(aclrtSetDevice(0), ACL_OK);
        CHECK_EQUAL(std::string(aclrtGetSocName()), "Ascend950PR_9599");
        void* streams[2];
        for (void*& stream : streams) {
            CHECK_EQUAL(aclrtCreateStream(&stream), ACL_OK);
            launch("Add", stream);
        }
        ProfRecordA5 records[8];
        const int bytes = prof_channel_read(0, PROF_CHANNEL_TASKS, reinterpret_cast<char*>(records), sizeof records);
        CHECK_EQUAL(bytes, 4 * 32);
        CHECK_EQUAL(records[1].task, records[0].task);
        CHECK_EQUAL(records[2].task, records[0].task + 1);
        CHECK_EQUAL(g_tracked[1].task, records[2].task);
        CHECK(records[0].clock <= records[1].clock);
    });
}

CASE(the_devices_clock_is_ahead_and_fast_as_told) {
    const alone::Knobs knobs{
        {"NPUSIM_CLOCK_OFFSET_NS", "5000000000"}, {"NPUSIM_CLOCK_PPM", "200"}, {"NPUSIM_CLOCK_MHZ", "100"}};
    alone::run(knobs, [] {
        int64_t mhz = 0, ticks = 0;
        CHECK_EQUAL(halGetDeviceInfo(0, HAL_MODULE_SYSTEM, HAL_INFO_OSC_FREQUENCY, &mhz), DRV_OK);
        CHECK_EQUAL(mhz, 100);
        const auto expected_ns = [](int64_t host_ns) {
            return static_cast<int64_t>(static_cast<long double>(host_ns) * 1.0002L) + 5000000000;
        };
        const int64_t before = now_ns();
        CHECK_EQUAL(halGetDeviceInfo(0, HAL_MODULE_SYSTEM, HAL_INFO_SYS_COUNT, &ticks), DRV_OK);
        const int64_t after = now_ns();
        CHECK(ticks * 10 >= expected_ns(before) - 10);
        CHECK(ticks * 10 <= expected_ns(after) + 10);

        start_profiling();
        CHECK_EQUAL(aclrtSetDevice(0), ACL_OK);
        const int64_t launched = now_ns();
        launch("timed", nullptr);
        const int64_t done = now_ns();
        for (const ProfRecordA2& record : read_channel()) {
            const int64_t at = static_cast<int64_t>(record.clock_low | static_cast<uint64_t>(record.clock_high) << 32);
            CHECK(at * 10 >= expected_ns(launched) - 10);
            CHECK(at * 10 <= expected_ns(done) + 10);
        }
    });
}

CASE(a_channel_that_nobody_asked_for_has_nothing) {
    alone::run({}, [] {
        uint32_t off[9] = {0};
        ProfStart start{0, 20, 1, off, sizeof off};
        CHECK_EQUAL(prof_drv_start(0, 7, &start), -1);
        CHECK_EQUAL(prof_drv_start(99, PROF_CHANNEL_TASKS, &start), -1);
        CHECK_EQUAL(prof_drv_start(0, PROF_CHANNEL_TASKS, &start), 0);
        CHECK_EQUAL(aclrtSetDevice(0), ACL_OK);
        launch("unseen", nullptr);
        CHECK_EQUAL(read_channel().size(), 0u);
    });
}

CASE(an_asynchronous_stream_works_in_order_behind_the_callers_back) {
    alone::run({{"NPUSIM_ASYNC", "1"}}, [] {
        static std::atomic<bool> may_go{false};
        static std::vector<int> order;
        CHECK_EQUAL(aclrtSetDevice(0), ACL_OK);
        void *stream = nullptr, *event = nullptr;
        CHECK_EQUAL(aclrtCreateStream(&stream), ACL_OK);
        CHECK_EQUAL(aclrtCreateEvent(&event), ACL_OK);
        const auto first = [](void*) {
            while (!may_go) sched_yield();
            order.push_back(1);
        };
        launch("first", stream, first);
        launch("second", stream, [](void*) { order.push_back(2); });
        CHECK_EQUAL(aclrtRecordEvent(event, stream), ACL_OK);
        int status = 1;
        CHECK_EQUAL(aclrtQueryEventStatus(event, &status), ACL_OK);
        CHECK_EQUAL(status, 0);  // the first still waits for us
        may_go = true;
        CHECK_EQUAL(aclrtSynchronizeStream(stream), ACL_OK);
        CHECK_EQUAL(aclrtQueryEventStatus(event, &status), ACL_OK);
        CHECK_EQUAL(status, 1);
        CHECK(order == (std::vector<int>{1, 2}));
        CHECK_EQUAL(aclrtDestroyEvent(event), ACL_OK);
        CHECK_EQUAL(aclrtDestroyStream(stream), ACL_OK);
    });
}

CASE(ranks_exchange_data) {
    const alone::Cards cards;
    constexpr uint32_t kRanks = 3;
    HcclRootInfo root;
    memset(&root, 0, sizeof root);
    snprintf(root.name, sizeof root.name, "/npusim-hccl-test-%d", static_cast<int>(getpid()));
    std::vector<pid_t> children;
    for (uint32_t rank = 0; rank < kRanks; ++rank)
        children.push_back(alone::start(cards, {{"NPUSIM_DEVICES", "3"}}, [&, rank] {
            CHECK_EQUAL(aclrtSetDevice(static_cast<int32_t>(rank)), ACL_OK);
            void* comm = nullptr;
            CHECK_EQUAL(HcclCommInitRootInfo(kRanks, &root, rank, &comm), HCCL_OK);

            std::vector<float> mine(400000, static_cast<float>(rank + 1)), sum(mine.size());
            CHECK_EQUAL(HcclAllReduce(mine.data(), sum.data(), mine.size(), HCCL_FP32, HCCL_SUM, comm, nullptr), 0);
            CHECK(sum.front() == 6 && sum.back() == 6);

            // Rank r sends r + 1 numbers to each rank, all of them 10 r + receiver.
            std::vector<int32_t> out, in(6, -1);
            std::vector<uint64_t> counts, offsets, in_counts, in_offsets;
            for (uint32_t peer = 0; peer < kRanks; ++peer) {
                counts.push_back(rank + 1);
                offsets.push_back(out.size());
                out.insert(out.end(), rank + 1, static_cast<int32_t>(10 * rank + peer));
                in_counts.push_back(peer + 1);
                in_offsets.push_back(peer * (peer + 1) / 2);
            }
            CHECK_EQUAL(HcclAlltoAllV(out.data(), counts.data(), offsets.data(), HCCL_INT32, in.data(),
                                      in_counts.data(), in_offsets.data(), HCCL_INT32, comm, nullptr),
                        HCCL_OK);
            const int32_t me = static_cast<int32_t>(rank);
            CHECK(in == (std::vector<int32_t>{me, 10 + me, 10 + me, 20 + me, 20 + me, 20 + me}));

            // All send to the next first, in one batch, more than a slot holds.
            std::vector<uint8_t> sent(200000, static_cast<uint8_t>(rank)), got(sent.size());
            HcclSendRecvItem items[] = {{HCCL_SEND, sent.data(), sent.size(), HCCL_UINT8, (rank + 1) % kRanks},
                                        {HCCL_RECV, got.data(), got.size(), HCCL_UINT8, (rank + 2) % kRanks}};
            CHECK_EQUAL(HcclBatchSendRecv(items, 2, comm, nullptr), HCCL_OK);
            CHECK_EQUAL(static_cast<uint32_t>(got.front()), (rank + 2) % kRanks);
            CHECK_EQUAL(static_cast<uint32_t>(got.back()), (rank + 2) % kRanks);

            int64_t parts[kRanks] = {100, 101, 102}, part = 0;
            CHECK_EQUAL(HcclScatter(parts, &part, 1, HCCL_INT64, 1, comm, nullptr), HCCL_OK);
            CHECK_EQUAL(part, 100 + static_cast<int64_t>(rank));
            CHECK_EQUAL(HcclCommDestroy(comm), HCCL_OK);
        }));
    for (const pid_t child : children) CHECK_EQUAL(alone::end_of(child), 0);
}

int main(int argc, char** argv) { return check::run(argc, argv); }
