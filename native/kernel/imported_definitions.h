// What the ids of imported events stand for, as columns: texts, frames and stacks.
//
// In: each definition once, by whoever reads a file. Out: columns as a batch has them (record/cutter.h), with the texts
// and the frames of stacks one behind the other.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "record/record.h"

namespace memscope::kernel {

struct ImportedDefinitions {
    std::vector<u64> string_id, frame_id, frame_file, frame_function, stack_id, stack_frames;
    std::vector<u32> string_bytes, frame_line, frame_kind, stack_count, stack_kind;
    std::string text;

    void add_text(u64 id, std::string_view words) {
        string_id.push_back(id);
        string_bytes.push_back(static_cast<u32>(words.size()));
        text.append(words);
    }

    void add_frame(u64 id, u64 file, u64 function, u32 line, FrameKind kind) {
        frame_id.push_back(id);
        frame_file.push_back(file);
        frame_function.push_back(function);
        frame_line.push_back(line);
        frame_kind.push_back(static_cast<u32>(kind));
    }

    void add_stack(u64 id, const std::vector<u64>& frames, FrameKind kind) {
        stack_id.push_back(id);
        stack_kind.push_back(static_cast<u32>(kind));
        stack_count.push_back(static_cast<u32>(frames.size()));
        stack_frames.insert(stack_frames.end(), frames.begin(), frames.end());
    }
};

}  // namespace memscope::kernel
