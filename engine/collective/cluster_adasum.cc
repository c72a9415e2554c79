#include "collective/cluster_adasum.h"

#include <array>
#include <span>

#include "collective/adasum_weights.h"
#include "kernels/adasum.h"

namespace hvd {

namespace {

constexpr std::size_t kPieceBytes = 4 * 1024 * 1024;
constexpr std::array<std::byte, kTileBytes> kZeroTile{};

}  // namespace

// The tiles of the current piece: every rank gives each tile to the rank that takes it.
class ClusterAdasum::Tiles final : public PairwiseParts {
 public:
  explicit Tiles(ClusterAdasum& adasum) : adasum_(adasum) {}

  void for_each_piece(int giver, int taker, const UsePiece& use) const override {
    const int self = adasum_.own_.rank;
    std::byte* out = adasum_.gathered_.data() + static_cast<std::size_t>(giver) * kTileBytes;
    const auto use_tile = [&](const Piece& tile, int turn) {
      if (turn != taker) return;
      View piece;
      piece.size_bytes = tile.size_bytes;
      if (giver == self) piece.in = tile.view.in == nullptr ? kZeroTile.data() : tile.in();
      if (taker == self) piece.out = out;
      use(piece);
      if (taker == self) out += adasum_.size_ * kTileBytes;
    };
    for_each_tile(adasum_.tiled_, adasum_.piece(), adasum_.size_, use_tile);
  }

 private:
  ClusterAdasum& adasum_;
};

ClusterAdasum::ClusterAdasum(const HostMap& map, Links& links, OwnPlace own,
                             ClusterAllreduce& allreduce, ClusterExchange& exchange)
    : map_(map),
      links_(links),
      own_(own),
      size_(map.rank_count()),
      allreduce_(allreduce),
      exchange_(exchange),
      sources_(size_) {}

void ClusterAdasum::begin(const ViewList& views, BlockNumber& next_block) {
  next_block_ = &next_block;
  tiled_ = tiled(views);
  gram_view_.clear();
  const std::size_t count = views.views().size();
  grams_.assign(count * gram_entries(size_), 0.0);
  weights_.assign(count * static_cast<std::size_t>(map_.own_members()), 1.0);
  weighted_ = with_weights(views, static_cast<std::size_t>(map_.own_members()), weights_.data());
  gram_view_.append(sum_view(grams_));
  phase_ = Phase::kDots;
  piece_begin_ = 0;
  begin_piece();
}

bool ClusterAdasum::advance(PeerWait& blocked) {
  while (phase_ == Phase::kDots) {
    if (!exchange_.advance(blocked)) return false;
    add_dots();
    piece_begin_ += kPieceBytes;
    piece_begin_ < tiled_.size_bytes() ? begin_piece() : begin_sum();
  }
  if (phase_ == Phase::kSum) {
    if (!allreduce_.advance(blocked)) return false;
    begin_apply();
  }
  return allreduce_.advance(blocked);
}

Range ClusterAdasum::piece() const { return {piece_begin_, piece_begin_ + kPieceBytes}; }

void ClusterAdasum::begin_piece() {
  std::size_t own_tiles = 0;
  for_each_tile(tiled_, piece(), size_, [&](const Piece&, int turn) {
    if (turn == own_.rank) ++own_tiles;
  });
  gathered_.resize(own_tiles * size_ * kTileBytes);
  const Tiles tiles(*this);
  const PairwiseParts* const bucket[] = {&tiles};
  exchange_.clear();
  describe_alltoall(map_, links_, own_, bucket, exchange_);
  *next_block_ += exchange_.begin(*next_block_);
}

void ClusterAdasum::add_dots() {
  const std::byte* at = gathered_.data();
  for_each_tile(tiled_, piece(), size_, [&](const Piece& tile, int turn) {
    if (turn != own_.rank) return;
    for (const std::byte*& source : sources_) {
      source = at;
      at += kTileBytes;
    }
    add_gram(tiled_, tile, sources_, grams_.data());
  });
}

void ClusterAdasum::begin_sum() {
  *next_block_ += allreduce_.begin(gram_view_, *next_block_);
  phase_ = Phase::kSum;
}

// Every rank computes the weights of all ranks from the same bits, and keeps those of its host.
void ClusterAdasum::begin_apply() {
  const std::size_t entries = gram_entries(size_);
  const std::vector<int>& members = map_.hosts[map_.own];
  std::vector<double> all(size_);
  for (std::size_t i = 0; i < weighted_.views().size(); ++i) {
    adasum_weights(std::span(grams_).subspan(i * entries, entries), all);
    const ReduceSpec& spec = weighted_.views()[i].spec;
    for (std::size_t member = 0; member < members.size(); ++member) {
      weights_[i * members.size() + member] = all[members[member]] * spec.prescale * spec.postscale;
    }
  }
  *next_block_ += allreduce_.begin(weighted_, *next_block_);
  phase_ = Phase::kApply;
}

}  // namespace hvd
