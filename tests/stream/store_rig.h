// A store over a fake reader, and a consumer that checks every byte it is given.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "fakes.h"
#include "stream/store.h"

namespace millrace::stream {

struct StoreRig {
  StoreRig(const Shape& shape, Demand wanted, bool whole_pieces = false)
      : table(make_table(shape)), demand(wanted), reader(table, whole_pieces) {}

  ResidencyPlan plan(uint64_t budget) const {
    auto planned = plan_residency(table, budget, demand);
    EXPECT_TRUE(planned) << planned.error().message;
    return planned ? std::move(*planned) : ResidencyPlan();
  }
  void open_with(uint64_t budget, const StoreOptions& options) {
    auto made = PieceStore::create(table, plan(budget), reader, ledger, options);
    ASSERT_TRUE(made) << made.error().message;
    store = std::move(*made);
  }
  uint64_t smallest() const { return plan(uint64_t{1} << 40).smallest_budget; }
  uint64_t full() const { return plan(uint64_t{1} << 40).full_budget; }

  void check(uint32_t piece, const std::byte* data) const {
    ASSERT_TRUE(holds_pattern(piece, data, table.pieces[piece].bytes)) << "piece " << piece;
  }
  void use(uint32_t piece) {
    const auto data = store->acquire(piece);
    ASSERT_TRUE(data) << data.error().message;
    check(piece, *data);
    store->release(piece);
  }
  // Fires and returns the order in which the pieces came.
  std::vector<uint32_t> fire(const std::vector<uint32_t>& pieces) {
    std::vector<uint32_t> order;
    store->begin_fired(pieces);
    PieceStore::Fired fired;
    for (;;) {
      const auto more = store->next_fired(&fired);
      EXPECT_TRUE(more) << more.error().message;
      if (!more || !*more) break;
      check(fired.piece, fired.data);
      order.push_back(fired.piece);
      store->release(fired.piece);
    }
    EXPECT_EQ(order.size(), pieces.size());
    return order;
  }

  format::PieceTable table;
  Demand demand;
  FakeReader reader;
  Ledger ledger{uint64_t{1} << 30};
  std::unique_ptr<PieceStore> store;
};

}  // namespace millrace::stream
