#include "trireme/checkpoint/shard_exchange.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <map>
#include <utility>

#include "trireme/base/error.h"

namespace trireme::checkpoint {
namespace {

using Entry = ShardCatalogue::Entry;

/// The rank that sends the shard. If all replicas are equal, a holder needs no transfer, and other
/// destinations use different holders.
int source_for(const Entry& held, int destination) {
  if (held.replicas == Replicas::kFirstCounts) return held.holders.front();
  if (held.is_held_by(destination)) return destination;
  return held.holders[static_cast<std::size_t>(destination) % held.holders.size()];
}

using Places = std::map<std::pair<std::string, Box>, const Shard*>;

Places places_of(const Shards& shards) {
  Places places;
  for (const Shard& shard : shards) places.emplace(std::pair(shard.name, shard.box()), &shard);
  return places;
}

/// Copies on this rank, piece by piece if a side is offloaded.
void copy_here(const Place& from, const Place& to) {
  if (to.tensor.is_same(from.tensor)) return;
  if (!from.offloaded_storage && !to.offloaded_storage) return to.set(from.tensor);
  const Box whole = whole_box(to.tensor.sizes());
  for (const Box& piece : pieces_of(whole, to.tensor.element_size(), kPieceBytes)) {
    const Place part{.tensor = view_of(from.tensor, whole, piece),
                     .offloaded_storage = from.offloaded_storage};
    Place{.tensor = view_of(to.tensor, whole, piece), .offloaded_storage = to.offloaded_storage}.set(
        part.values());
  }
}

}  // namespace

void carry(comm::Group& group, const Place& from, int source, const Place& to, int destination) {
  const at::NoGradGuard no_grad;
  const bool sends = group.rank() == source, receives = group.rank() == destination;
  if (sends && receives) return copy_here(from, to);
  if (!sends && !receives) return;
  const Place& mine = sends ? from : to;
  const Box whole = whole_box(mine.tensor.sizes());
  for (const Box& piece : pieces_of(whole, mine.tensor.element_size(), kPieceBytes)) {
    const Place part{.tensor = view_of(mine.tensor, whole, piece),
                     .offloaded_storage = mine.offloaded_storage};
    at::Tensor view = part.tensor;
    // Through host memory: the two sides may be on different devices.
    if (sends) {
      group.send(part.values().to(at::kCPU).contiguous(), destination);
    } else if (view.is_cpu() && view.is_contiguous()) {
      group.recv(view, source);
    } else {
      at::Tensor buffer = at::empty(piece.sizes, view.options().device(at::kCPU));
      group.recv(buffer, source);
      part.set(buffer);
    }
  }
}

ShardExchange::ShardExchange(comm::Group group, const Shards& have, const Shards& want)
    : group_(std::move(group)) {
  const ShardCatalogue held(group_, have), wanted(group_, want);
  for (const Entry& entry : wanted.entries()) plan(entry, held);
}

void ShardExchange::plan(const Entry& wanted, const ShardCatalogue& have) {
  std::int64_t found = 0;
  for (const Entry& held : have.of(wanted.name)) {
    require(held.global_sizes == wanted.global_sizes && held.type == wanted.type, "'", wanted.name, "' is ",
            at::IntArrayRef(held.global_sizes), " of type ", held.type, " on rank ", held.holders.front(),
            " and is wanted as ", at::IntArrayRef(wanted.global_sizes), " of type ", wanted.type);
    const std::optional<Box> common = overlap(held.box, wanted.box);
    if (!common) continue;
    found += common->numel();
    for (const int destination : wanted.holders) {
      transfers_.push_back({.name = wanted.name,
                            .from = held.box,
                            .to = wanted.box,
                            .box = *common,
                            .source = source_for(held, destination),
                            .destination = destination});
    }
  }
  require(found == wanted.box.numel(), "rank ", wanted.holders.front(), " wants ", wanted.box.numel(),
          " elements of '", wanted.name, "', and ranks have ", found, " of them");
}

void ShardExchange::run(const Shards& have, const Shards& want) {
  const Places from = places_of(have), to = places_of(want);
  for (const Transfer& transfer : transfers_) {
    const bool sends = group_.rank() == transfer.source, receives = group_.rank() == transfer.destination;
    const auto view = [&](const Places& places, const Box& of) {
      const auto place = places.find({transfer.name, of});
      require(place != places.end(), "rank ", group_.rank(), " no longer has ", describe(of), " of '",
              transfer.name, "'");
      return place->second->place_of(transfer.box);
    };
    carry(group_, sends ? view(from, transfer.from) : Place(), transfer.source,
          receives ? view(to, transfer.to) : Place(), transfer.destination);
  }
}

}  // namespace trireme::checkpoint
