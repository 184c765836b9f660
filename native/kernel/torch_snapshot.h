// A memory snapshot of PyTorch as columns.
//
// In: the plain data of a pickle that torch.cuda.memory._dump_snapshot() wrote, or torch_npu's function of that name: a
// dict of `segments` (what the allocator holds now, with its blocks), `device_traces` (its history, a list of entries
// per device), `external_annotations` (ranges) and `allocator_settings`. The fields are those that
// torch/csrc/cuda/memory_snapshot.cpp and torch/cuda/_memory_viz.py name; those that only newer versions have may be
// missing. Out: numbers as they stand there, in the order of the file; what they mean is nobody's business here
// (msmemscope/imports/torch_events.py). An entry that is damaged is left out and counted.
//
//   stacks   a list of frames, innermost first, is cut in two: frames of Python and of other code (C++), each with an
//   id
//            by content, as records have it. A list that several entries share is looked at once.
//   sharing  a list of entries that stands in several places would be worked on as often: the second is refused.
#pragma once

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernel/imported_definitions.h"
#include "kernel/pickle_data.h"
#include "record/record.h"

namespace memscope::kernel {

// Keys of the dicts of a snapshot.
#define MEMSCOPE_SNAPSHOT_KEYS(X) \
    X(segments)                   \
    X(device_traces)              \
    X(external_annotations)       \
    X(allocator_settings)         \
    X(action)                     \
    X(addr)                       \
    X(size)                       \
    X(stream)                     \
    X(time_us)                    \
    X(device_free)                \
    X(user_metadata)              \
    X(frames)                     \
    X(device)                     \
    X(address)                    \
    X(total_size)                 \
    X(is_expandable)              \
    X(blocks)                     \
    X(state)                      \
    X(requested_size)             \
    X(history)                    \
    X(real_size)                  \
    X(stage)                      \
    X(name)                       \
    X(filename)                   \
    X(line)

// What an entry of a history says. name, its word in the file
#define MEMSCOPE_TRACE_ACTIONS(X)       \
    X(ALLOC, "alloc")                   \
    X(FREE_REQUESTED, "free_requested") \
    X(FREE_COMPLETED, "free_completed") \
    X(SEGMENT_ALLOC, "segment_alloc")   \
    X(SEGMENT_FREE, "segment_free")     \
    X(SEGMENT_MAP, "segment_map")       \
    X(SEGMENT_UNMAP, "segment_unmap")   \
    X(SNAPSHOT, "snapshot")             \
    X(OOM, "oom")                       \
    X(USER_DEFINED, "user_defined")

enum class TraceAction : u8 {
    OTHER,
#define X(name, word) name,
    MEMSCOPE_TRACE_ACTIONS(X)
#undef X
};

// type, name. time_us: -1 where the version of torch tells no time. text: string id of what the program noted with the
// entry. An OOM's addr is what was free on its device.
#define MEMSCOPE_TRACE_COLUMNS(X) \
    X(u32, device)                \
    X(u8, action)                 \
    X(u64, addr)                  \
    X(i64, size)                  \
    X(i64, stream)                \
    X(i64, time_us)               \
    X(u64, stack_py)              \
    X(u64, stack_c)               \
    X(u64, text)
#define MEMSCOPE_TORCH_SEGMENT_COLUMNS(X) \
    X(i64, device)                        \
    X(u64, addr)                          \
    X(i64, size)                          \
    X(i64, stream)                        \
    X(u8, expandable)                     \
    X(u64, stack_py)                      \
    X(u64, stack_c)
// segment: its row in the table before. state: BlockState.
#define MEMSCOPE_TORCH_BLOCK_COLUMNS(X) \
    X(u32, segment)                     \
    X(u64, addr)                        \
    X(i64, size)                        \
    X(i64, requested)                   \
    X(u8, state)                        \
    X(u64, stack_py)                    \
    X(u64, stack_c)
#define MEMSCOPE_ANNOTATION_COLUMNS(X) \
    X(u8, start)                       \
    X(u64, name)                       \
    X(i64, device)                     \
    X(i64, time_us)

#define X(type, name) std::vector<type> name;
struct TraceTable {
    MEMSCOPE_TRACE_COLUMNS(X)
};
struct TorchSegmentTable {
    MEMSCOPE_TORCH_SEGMENT_COLUMNS(X)
};
struct TorchBlockTable {
    MEMSCOPE_TORCH_BLOCK_COLUMNS(X)
};
struct AnnotationTable {
    MEMSCOPE_ANNOTATION_COLUMNS(X)
};
#undef X

class TorchSnapshot {
public:
    // Throws PickleError for data that is no snapshot.
    explicit TorchSnapshot(const PickleData& data);

    TraceTable traces;
    TorchSegmentTable segments;
    TorchBlockTable blocks;
    AnnotationTable annotations;
    ImportedDefinitions definitions;
    std::vector<std::pair<std::string, std::string>> settings;  // allocator_settings, as far as they are plain values
    std::vector<std::string> unknown_actions;                   // words, the first kMostUnknown
    u64 left_out = 0;                                           // damaged entries
    std::string first_left_out;                                 // the place of one, and what is wrong

    static constexpr std::size_t kMostUnknown = 8;

private:
    using Value = PickleData::Value;
    using Type = PickleData::Type;
    struct Keys {
#define X(word) Value word;
        MEMSCOPE_SNAPSHOT_KEYS(X)
#undef X
    };
    struct Stack {
        u64 py = 0, c = 0;
    };

    void read_traces(Value lists);
    void read_segments(Value list);
    void read_blocks(Value list, u32 segment, u64 address, const std::string& place);
    void read_annotations(Value list);
    void read_settings(Value dict);
    bool read_entry(Value entry, u32 device, std::string& why);

    PickleData::Cells list_of(Value value, const char* what);
    bool number(Value dict, Value key, i64& into, std::string& why) const;
    i64 number_or(Value dict, Value key, i64 otherwise) const;
    u64 text_of(Value dict, Value key);  // string id; 0: none
    u64 define_text(std::size_t number);
    u64 define_text(const std::string& text);  // that does not stand in the file
    Stack stack_of(Value dict);
    u64 define_frame(Value frame, bool& is_python);
    u64 define_stack(const std::vector<u64>& frames, FrameKind kind);
    void leave_out(const std::string& place, const std::string& why);

    const PickleData& data_;
    Keys keys_;
    std::vector<bool> is_defined_;  // by number of text
    std::vector<u8> seen_;          // by container: a list of entries that was worked on
    std::vector<u32> told_;         // by container that is a frame or a stack: its number below, +1
    std::vector<Stack> told_stacks_;
    std::vector<std::pair<u64, bool>> told_frames_;  // id, whether it is Python's
    std::unordered_map<u64, u32> frames_;            // by id: number in told_frames_
    std::unordered_map<u64, bool> stack_ids_;        // that are defined
    std::vector<u64> py_, c_;                        // of the stack at hand
};

}  // namespace memscope::kernel
