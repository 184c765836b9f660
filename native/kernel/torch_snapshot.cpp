#include "kernel/torch_snapshot.h"

#include <algorithm>

namespace memscope::kernel {

namespace {

using Value = PickleData::Value;
using Type = PickleData::Type;

TraceAction action_of(std::string_view word) noexcept {
#define X(name, text) \
    if (word == (text)) return TraceAction::name;
    MEMSCOPE_TRACE_ACTIONS(X)
#undef X
    return TraceAction::OTHER;
}

BlockState state_of(std::string_view word) noexcept {
    if (word == "active_allocated") return BlockState::ALLOCATED;
    // The second is its word before torch 2.1.
    if (word == "active_pending_free" || word == "active_awaiting_free") return BlockState::PENDING_FREE;
    return BlockState::FREE;
}

bool ends_with(std::string_view text, std::string_view end) noexcept {
    return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

constexpr std::size_t kLongestPlace = 256;  // each line of a file is a text of its own

// Code that was made at run time has no file, but a name in angle brackets.
bool is_python_file(std::string_view file) noexcept { return ends_with(file, ".py") || file.substr(0, 1) == "<"; }

}  // namespace

TorchSnapshot::TorchSnapshot(const PickleData& data)
    : data_(data), is_defined_(data.texts()), seen_(data.containers()), told_(data.containers()) {
#define X(word) keys_.word = data.value_of(#word);
    MEMSCOPE_SNAPSHOT_KEYS(X)
#undef X
    const Value root = data.root();
    if (root.type() != Type::DICT || data.find(root, keys_.segments).type() == Type::NONE)
        throw PickleError("it is a pickle, but no memory snapshot: it has no dict with `segments`");
    read_traces(data.find(root, keys_.device_traces));
    read_segments(data.find(root, keys_.segments));
    read_annotations(data.find(root, keys_.external_annotations));
    read_settings(data.find(root, keys_.allocator_settings));
}

// ---------------------------------------------------------------------------------------------- tables

void TorchSnapshot::read_traces(Value lists) {
    if (lists.type() == Type::NONE) return;
    const PickleData::Cells devices = list_of(lists, "device_traces");
    if (devices.size > 1u << 15) throw PickleError("device_traces names more devices than there can be");
    std::string why;
    for (std::size_t device = 0; device < devices.size; ++device) {
        const PickleData::Cells entries = list_of(devices[device], "a history of device_traces");
        for (std::size_t at = 0; at < entries.size; ++at)
            if (!read_entry(entries[at], static_cast<u32>(device), why))
                leave_out("device_traces[" + std::to_string(device) + "][" + std::to_string(at) + "]", why);
    }
}

bool TorchSnapshot::read_entry(Value entry, u32 device, std::string& why) {
    if (entry.type() != Type::DICT) {
        why = "it is no dict";
        return false;
    }
    const Value word = data_.find(entry, keys_.action);
    if (word.type() != Type::TEXT) {
        why = "action is missing or no text";
        return false;
    }
    const TraceAction action = action_of(data_.text(word.payload()));
    if (action == TraceAction::OTHER) {
        const std::string text(data_.text(word.payload()).substr(0, 40));
        const bool is_new = std::find(unknown_actions.begin(), unknown_actions.end(), text) == unknown_actions.end();
        if (is_new && unknown_actions.size() < kMostUnknown) unknown_actions.push_back(text);
        why = "its action is not known";
        return false;
    }
    i64 address = 0, size = 0;
    const bool is_about_memory = action <= TraceAction::SEGMENT_UNMAP && action != TraceAction::OTHER;
    if (is_about_memory) {
        if (!number(entry, keys_.addr, address, why) || !number(entry, keys_.size, size, why)) return false;
        if (size < 0) {
            why = "size is negative";
            return false;
        }
    } else {
        size = number_or(entry, keys_.size, 0);
        address = number_or(entry, action == TraceAction::OOM ? keys_.device_free : keys_.addr, -1);
    }
    const Stack stack = stack_of(entry);
    traces.device.push_back(device);
    traces.action.push_back(static_cast<u8>(action));
    traces.addr.push_back(static_cast<u64>(address));
    traces.size.push_back(size);
    traces.stream.push_back(number_or(entry, keys_.stream, 0));
    traces.time_us.push_back(std::max<i64>(number_or(entry, keys_.time_us, -1), -1));
    traces.stack_py.push_back(stack.py);
    traces.stack_c.push_back(stack.c);
    traces.text.push_back(text_of(entry, keys_.user_metadata));
    return true;
}

void TorchSnapshot::read_segments(Value list) {
    const PickleData::Cells found = list_of(list, "segments");
    std::string why;
    for (std::size_t at = 0; at < found.size; ++at) {
        const std::string place = "segments[" + std::to_string(at) + "]";
        i64 device = 0, address = 0, size = 0;
        const Value segment = found[at];
        if (segment.type() != Type::DICT) {
            leave_out(place, "it is no dict");
            continue;
        }
        if (!number(segment, keys_.device, device, why) || !number(segment, keys_.address, address, why) ||
            !number(segment, keys_.total_size, size, why)) {
            leave_out(place, why);
            continue;
        }
        const Value expandable = data_.find(segment, keys_.is_expandable);
        const Stack stack = stack_of(segment);
        segments.device.push_back(device);
        segments.addr.push_back(static_cast<u64>(address));
        segments.size.push_back(size);
        segments.stream.push_back(number_or(segment, keys_.stream, 0));
        segments.expandable.push_back(expandable.type() == Type::BOOL && expandable.payload() != 0);
        segments.stack_py.push_back(stack.py);
        segments.stack_c.push_back(stack.c);
        read_blocks(data_.find(segment, keys_.blocks), static_cast<u32>(segments.addr.size() - 1),
                    static_cast<u64>(address), place);
    }
}

void TorchSnapshot::read_blocks(Value list, u32 segment, u64 address, const std::string& place) {
    if (list.type() == Type::NONE) return;
    const PickleData::Cells found = list_of(list, "blocks of a segment");
    std::string why;
    for (std::size_t at = 0; at < found.size; ++at) {
        const std::string here = place + ".blocks[" + std::to_string(at) + "]";
        const Value block = found[at];
        const Value word = data_.find(block, keys_.state);
        i64 size = 0;
        if (block.type() != Type::DICT || word.type() != Type::TEXT || !number(block, keys_.size, size, why) ||
            size < 0) {
            leave_out(here, block.type() != Type::DICT  ? "it is no dict"
                            : word.type() != Type::TEXT ? "state is missing or no text"
                            : why.empty()               ? "size is negative"
                                                        : why);
            continue;
        }
        // Before torch 2.1 a block has no address of its own, and says in `history` what it was asked for.
        address = static_cast<u64>(number_or(block, keys_.address, static_cast<i64>(address)));
        Value told = block;
        i64 requested = number_or(block, keys_.requested_size, size);
        const Value history = data_.find(block, keys_.history);
        if (history.type() == Type::LIST && data_.cells(history).size > 0) {
            told = data_.cells(history)[0];
            requested = number_or(told, keys_.real_size, requested);
        }
        const Stack stack = stack_of(told);
        blocks.segment.push_back(segment);
        blocks.addr.push_back(address);
        blocks.size.push_back(size);
        blocks.requested.push_back(requested);
        blocks.state.push_back(static_cast<u8>(state_of(data_.text(word.payload()))));
        blocks.stack_py.push_back(stack.py);
        blocks.stack_c.push_back(stack.c);
        address += static_cast<u64>(size);
    }
}

void TorchSnapshot::read_annotations(Value list) {
    if (list.type() == Type::NONE) return;
    const PickleData::Cells found = list_of(list, "external_annotations");
    for (std::size_t at = 0; at < found.size; ++at) {
        const std::string place = "external_annotations[" + std::to_string(at) + "]";
        std::string why;
        const Value one = found[at];
        const Value stage = data_.find(one, keys_.stage);
        i64 time = 0;
        if (stage.type() != Type::TEXT || data_.find(one, keys_.name).type() != Type::TEXT ||
            !number(one, keys_.time_us, time, why)) {
            leave_out(place, why.empty() ? "stage or name is missing or no text" : why);
            continue;
        }
        annotations.start.push_back(data_.text(stage.payload()) == "START");
        annotations.name.push_back(text_of(one, keys_.name));
        annotations.device.push_back(number_or(one, keys_.device, 0));
        annotations.time_us.push_back(time);
    }
}

void TorchSnapshot::read_settings(Value dict) {
    if (dict.type() != Type::DICT) return;
    const PickleData::Cells items = data_.cells(dict);
    for (std::size_t at = 0; at < std::min<std::size_t>(items.size, 256); at += 2) {
        const Value key = items[at], value = items[at + 1];
        if (key.type() != Type::TEXT) continue;
        i64 number = 0;
        std::string text;
        if (value.type() == Type::TEXT)
            text = data_.text(value.payload());
        else if (value.type() == Type::BOOL)
            text = value.payload() != 0 ? "True" : "False";
        else if (data_.to_int(value, number))
            text = std::to_string(number);
        else
            continue;
        settings.emplace_back(data_.text(key.payload()), text);
    }
}

// ---------------------------------------------------------------------------------------------- values

// The elements of a list of entries, each of which is worked on once.
PickleData::Cells TorchSnapshot::list_of(Value value, const char* what) {
    if (value.type() != Type::LIST && value.type() != Type::TUPLE)
        throw PickleError(std::string("it is no memory snapshot: ") + what + " is no list");
    u8& seen = seen_[value.payload()];
    if (seen != 0 && data_.cells(value).size > 0)
        throw PickleError(std::string("it is no memory snapshot: ") + what + " stands in it twice");
    seen = 1;
    return data_.cells(value);
}

bool TorchSnapshot::number(Value dict, Value key, i64& into, std::string& why) const {
    if (data_.to_int(data_.find(dict, key), into)) return true;
    const std::string name(key.payload() < data_.texts() ? data_.text(key.payload()) : "its address or size");
    why = name + " is missing or no number of 64 bits";
    return false;
}

i64 TorchSnapshot::number_or(Value dict, Value key, i64 otherwise) const {
    i64 number = otherwise;
    return data_.to_int(data_.find(dict, key), number) ? number : otherwise;
}

u64 TorchSnapshot::text_of(Value dict, Value key) {
    const Value value = data_.find(dict, key);
    if (value.type() != Type::TEXT || data_.text(value.payload()).empty()) return 0;
    return define_text(value.payload());
}

u64 TorchSnapshot::define_text(std::size_t number) {
    const u64 id = data_.text_id_of(number);
    if (!is_defined_[number]) {
        is_defined_[number] = true;
        definitions.add_text(id, data_.text(number));
    }
    return id;
}

u64 TorchSnapshot::define_text(const std::string& text) {
    const u64 id = text_id(text.data(), text.size());
    definitions.add_text(id, text);
    return id;
}

TorchSnapshot::Stack TorchSnapshot::stack_of(Value dict) {
    const Value frames = data_.find(dict, keys_.frames);
    if (frames.type() != Type::LIST && frames.type() != Type::TUPLE) return {};
    const PickleData::Cells found = data_.cells(frames);
    if (found.size == 0) return {};
    u32& told = told_[frames.payload()];
    if (told != 0) return told_stacks_[told - 1];
    py_.clear();
    c_.clear();
    for (std::size_t at = 0; at < found.size && py_.size() < kMaxFrames && c_.size() < kMaxFrames; ++at) {
        bool is_python = false;
        const u64 id = define_frame(found[at], is_python);
        if (id != 0) (is_python ? py_ : c_).push_back(id);
    }
    told_stacks_.push_back(Stack{define_stack(py_, FrameKind::PYTHON), define_stack(c_, FrameKind::NATIVE)});
    told = static_cast<u32>(told_stacks_.size());
    return told_stacks_.back();
}

u64 TorchSnapshot::define_frame(Value frame, bool& is_python) {
    if (frame.type() != Type::DICT) return 0;
    u32& told = told_[frame.payload()];
    if (told == 0) {
        const Value file = data_.find(frame, keys_.filename), function = data_.find(frame, keys_.name);
        if (file.type() != Type::TEXT || function.type() != Type::TEXT) return 0;
        const bool is_of_python = is_python_file(data_.text(file.payload()));
        const FrameKind kind = is_of_python ? FrameKind::PYTHON : FrameKind::NATIVE;
        u32 line = static_cast<u32>(std::clamp<i64>(number_or(frame, keys_.line, 0), 0, (i64{1} << 32) - 1));
        std::string place;
        u64 file_id = 0;
        const u64 function_id = define_text(function.payload());
        if (!is_of_python && line != 0) {
            // The line of a native frame is a place within an object, which is not known here: it goes to the file.
            place = data_.text(file.payload()).substr(0, kLongestPlace);
            place.append(":").append(std::to_string(line));
            line = 0;
            file_id = text_id(place.data(), place.size());
        } else {
            file_id = define_text(file.payload());
        }
        const u64 id = frame_id(file_id, function_id, line, static_cast<u64>(kind));
        const auto [known, is_new] = frames_.try_emplace(id, static_cast<u32>(told_frames_.size()));
        told = known->second + 1;
        if (is_new) {
            if (!place.empty()) define_text(place);
            told_frames_.emplace_back(id, is_of_python);
            definitions.add_frame(id, file_id, function_id, line, kind);
        }
    }
    is_python = told_frames_[told - 1].second;
    return told_frames_[told - 1].first;
}

u64 TorchSnapshot::define_stack(const std::vector<u64>& frames, FrameKind kind) {
    if (frames.empty()) return 0;
    const u64 id = stack_id(frames.data(), frames.size(), static_cast<u64>(kind));
    if (stack_ids_.emplace(id, true).second) definitions.add_stack(id, frames, kind);
    return id;
}

void TorchSnapshot::leave_out(const std::string& place, const std::string& why) {
    if (left_out++ == 0) first_left_out = place + ": " + why;
}

}  // namespace memscope::kernel
