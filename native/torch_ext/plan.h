// What an operator does to its tensors, read once from its schema.
//
// In: a FunctionSchema, and undeclared.inc for what schemas do not say. Out: for each argument and each return, whether
// its memory is read or written. Plans are made at an operator's first call and never freed: threads look them up
// without a lock.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/record_function.h>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace memscope::observer {

// As aux of an ACCESS, and what is none of them.
enum class Access : unsigned char { UNKNOWN = 0, READ = 1, WRITE = 2, NONE = 3, WRITE_IF_FLAG = 4 };

struct Plan {
    const char* key = nullptr;                                      // where the name stands in the schema
    std::string schema_name;                                        // to know it again when that place holds another's
    std::string name;                                               // torch._ops.aten.add.Tensor
    bool is_passed_over = false;                                    // it only calls others, which are observed instead
    bool casts_cpu = false, casts_cuda = false, casts_npu = false;  // autocast hands on to a second call of it
    std::vector<Access> arguments, returns;
    int flag = -1;               // the argument that decides WRITE_IF_FLAG
    int group = -1;              // the argument that says which group of processes runs this collective
    bool is_torchs_own = false;  // its kernels are: they start no threads that go on
    mutable std::atomic<bool> makes_inner_calls{false};  // found out by its calls; of torch's own alone

    void note_inner_calls() const {
        if (is_torchs_own) makes_inner_calls.store(true, std::memory_order_relaxed);
    }
};

struct Undeclared {
    enum class What { UNTOUCHED, EMPTY, FACTORY, WRITES, USED_SOMEHOW, RETURNS_ARGUMENTS } what;
    const char *name, *argument, *flag;
};

inline constexpr Undeclared kUndeclared[] = {
#define UNTOUCHED(name) {Undeclared::What::UNTOUCHED, name, "", ""},
#define EMPTY(name) {Undeclared::What::EMPTY, name, "", ""},
#define FACTORY(name) {Undeclared::What::FACTORY, name, "", ""},
#define WRITES(name, argument, flag) {Undeclared::What::WRITES, name, argument, flag},
#define USED_SOMEHOW(name, argument) {Undeclared::What::USED_SOMEHOW, name, argument, ""},
#define RETURNS_ARGUMENTS(name) {Undeclared::What::RETURNS_ARGUMENTS, name, "", ""},
#include "undeclared.inc"
#undef UNTOUCHED
#undef EMPTY
#undef FACTORY
#undef WRITES
#undef USED_SOMEHOW
#undef RETURNS_ARGUMENTS
};

inline int position_of(const c10::FunctionSchema& schema, const std::string& argument) {
    for (std::size_t i = 0; i < schema.arguments().size(); ++i)
        if (schema.arguments()[i].name() == argument) return static_cast<int>(i);
    return -1;
}

inline void apply_undeclared(const c10::FunctionSchema& schema, Plan& plan) {
    const std::string space = schema.name().substr(0, schema.name().find("::"));
    for (const Undeclared& line : kUndeclared) {
        if (line.what == Undeclared::What::RETURNS_ARGUMENTS) {
            if (space == line.name) plan.returns.assign(plan.returns.size(), Access::NONE);
            continue;
        }
        if (schema.name() != line.name) continue;
        if (line.what == Undeclared::What::WRITES) {
            const int written = position_of(schema, line.argument);
            if (written < 0) continue;
            plan.flag = *line.flag != 0 ? position_of(schema, line.flag) : -1;
            plan.arguments[static_cast<std::size_t>(written)] = plan.flag >= 0 ? Access::WRITE_IF_FLAG : Access::WRITE;
            continue;
        }
        if (line.what == Undeclared::What::USED_SOMEHOW) {
            if (const int used = position_of(schema, line.argument); used >= 0)
                plan.arguments[static_cast<std::size_t>(used)] = Access::UNKNOWN;
            continue;
        }
        plan.arguments.assign(plan.arguments.size(), Access::NONE);
        if (line.what != Undeclared::What::FACTORY) plan.returns.assign(plan.returns.size(), Access::NONE);
    }
}

// Of a collective operation, c10d's own or a functional one. Sending and receiving are none.
inline int position_of_group(const c10::FunctionSchema& schema) {
    const std::string& name = schema.name();
    if (name.compare(0, 18, "_c10d_functional::") == 0) return position_of(schema, "group_name");
    if (name.compare(0, 6, "c10d::") != 0 || name == "c10d::send" || name.compare(0, 10, "c10d::recv") == 0) return -1;
    return position_of(schema, "process_group");
}

inline bool is_marked(const c10::Argument& argument) { return argument.alias_info() != nullptr; }
inline bool is_written(const c10::Argument& argument) {
    return is_marked(argument) && argument.alias_info()->isWrite();
}

inline bool may_return_view(const c10::FunctionSchema& schema) {
    for (const c10::Argument& returned : schema.returns())
        if (is_marked(returned) && !is_written(returned)) return true;
    return false;
}

inline void fill_plan(const c10::FunctionSchema& schema, Plan& plan) {
    plan.schema_name = schema.name();
    plan.is_torchs_own = plan.schema_name.compare(0, 6, "aten::") == 0;
    const std::string& overload = schema.overload_name();
    std::string dotted = schema.name();
    if (const auto colons = dotted.find("::"); colons != std::string::npos) dotted.replace(colons, 2, ".");
    plan.name = "torch._ops." + dotted + "." + (overload.empty() ? "default" : overload);

    bool only_views = false;
    if (const auto handle = c10::Dispatcher::singleton().findOp(schema.operator_name())) {
        using c10::DispatchKey;
        const auto has = [&](DispatchKey key) { return handle->hasKernelForDispatchKey(key); };
        const bool has_kernel = has(DispatchKey::CPU) || has(DispatchKey::CUDA) || has(DispatchKey::PrivateUse1);
        // contiguous, reshape: whether it is a view or a copy, what it calls tells.
        plan.is_passed_over = has(DispatchKey::CompositeImplicitAutograd) && (!has_kernel || may_return_view(schema));
        plan.casts_cpu = has(DispatchKey::AutocastCPU);
        plan.casts_cuda = has(DispatchKey::AutocastCUDA);
        plan.casts_npu = has(DispatchKey::AutocastPrivateUse1);
        only_views = handle->hasTag(at::Tag::inplace_view);
    }
    bool writes = false;
    for (const c10::Argument& argument : schema.arguments()) {
        writes |= is_written(argument);
        plan.arguments.push_back(only_views             ? Access::NONE
                                 : is_written(argument) ? Access::WRITE
                                 : is_marked(argument)  ? Access::NONE
                                                        : Access::READ);
    }
    for (const c10::Argument& returned : schema.returns())
        plan.returns.push_back(is_marked(returned) || only_views ? Access::NONE : Access::WRITE);
    // It must do something to somebody, and says nothing.
    if (schema.returns().empty() && !writes && !plan.is_torchs_own)
        for (Access& access : plan.arguments) access = Access::UNKNOWN;
    apply_undeclared(schema, plan);
    plan.group = position_of_group(schema);
}

// Plans by the address of the operator's name in its schema, which stays as long as the operator is registered. (The
// schema itself can only be had as a copy, which takes longer than most operators.)
class Plans {
public:
    // nullptr: the call is no operator, or there are more operators than any torch has.
    const Plan* find(const at::RecordFunction& call) {
        const char* const name = call.name();
        std::size_t at = (reinterpret_cast<std::uintptr_t>(name) >> 3) * 0x9E3779B97F4A7C15ull >> (64 - kBits);
        for (std::size_t tried = 0; tried < kMostTried; ++tried, at = (at + 1) % kSlots) {
            Slot& slot = slots_[at];
            const Plan* plan = slot.plan.load(std::memory_order_acquire);
            if (plan != nullptr) {
                if (is_of(*plan, name)) return plan;
                continue;  // another's, or of an operator that is gone
            }
            const auto schema = call.operator_schema();
            if (!schema.has_value()) return nullptr;
            auto* made = new Plan;
            fill_plan(*schema, *made);
            made->key = name;
            if (slot.plan.compare_exchange_strong(plan, made, std::memory_order_acq_rel)) return made;
            if (is_of(*plan, name)) return plan;  // another thread was faster; `made` stays
        }
        return nullptr;
    }

private:
    static bool is_of(const Plan& plan, const char* name) {
        return plan.key == name && strcmp(plan.schema_name.c_str(), name) == 0;
    }

    static constexpr unsigned kBits = 14;
    static constexpr std::size_t kSlots = std::size_t{1} << kBits;
    static constexpr std::size_t kMostTried = 256;
    struct Slot {
        std::atomic<const Plan*> plan{nullptr};
    };
    Slot slots_[kSlots];
};

}  // namespace memscope::observer
