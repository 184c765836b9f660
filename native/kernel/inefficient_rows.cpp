#include "kernel/inefficient_rows.h"

namespace memscope::kernel {

void InefficientRows::add(Kind kind, u32 framework, const Row& row) {
    if (row.pid != pid_) {
        finish();
        pid_ = row.pid;
    }
    if (kind == Kind::OP_START) return order_->start(0, framework);
    if (kind == Kind::OP_END) return order_->end(0, framework);
    const Family family = family_of(PoolKey{0, 0, row.pool});
    if (family == Family::COUNT) return;
    const ApiOrder::Clock clock = ApiOrder::clock_of(family);
    if (kind == Kind::MALLOC) {
        const auto [at, is_new] = begun_.try_emplace(row.allocation_id);
        if (!is_new) end(at->second);
        at->second = {{}, row};
        at->second.life.malloc_api = order_->malloc(clock, 0).api;
        return;
    }
    const u64 api = kind == Kind::ACCESS ? order_->access(clock, 0).api : order_->free(clock, 0).api;
    const auto found = begun_.find(row.allocation_id);
    if (found == begun_.end()) return;
    if (kind == Kind::ACCESS) {
        found->second.life.access(api, order_->last_free(clock), threshold_);
        return;
    }
    found->second.life.free(api, order_->last_malloc(clock));
    end(found->second);
    begun_.erase(found);
}

void InefficientRows::finish() {
    for (const auto& [id, block] : begun_) end(block);
    begun_ = {};
    order_.emplace(ApiOrder::Rule::LETTER);
}

void InefficientRows::end(const Begun& block) {
    if (block.life.words == 0) return;
    Row row = block.row;
    row.bits = block.life.words;
#define X(type, name) table_.name.push_back(row.name);
    MEMSCOPE_INEFFICIENT_COLUMNS(X)
#undef X
}

}  // namespace memscope::kernel
