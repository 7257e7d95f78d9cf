// The manifest and one part of a parameter server's checkpoint, separated by eight bytes 0x1f. A ninth byte
// '2' selects the previous version of the part. After eight more bytes 0x1f come the part's pieces. Both
// files begin with a magic number, a size and a checksum, which are made correct. The part is also read as
// the body of a request that restores rows.
#include "tests/fuzz/reading.h"
#include "trireme/ps/checkpoint_file.h"
#include "trireme/ps/internal/hash.h"
#include "trireme/ps/internal/restored_rows.h"
#include "trireme/ps/internal/sparse_table.h"

using namespace trireme;

namespace {

std::pair<std::string_view, std::string_view> parted(std::string_view input) {
  const std::size_t at = input.find(std::string(8, '\x1f'));
  return {input.substr(0, at), at == std::string_view::npos ? "" : input.substr(at + 8)};
}

void restore(std::span<const std::byte> bytes) {
  ps::TableSpec spec{.name = "rows", .kind = ps::TableKind::kSparse, .rows = {.elements = 3}};
  if (ps::RestoredRows::rejection(spec, bytes) != ps::ErrorKind::kNone) return;
  ps::SparseTable(spec).restore(ps::RestoredRows(bytes), 5);
}

std::string sealed(std::string_view mark, std::string_view body) {
  const std::uint64_t numbers[2] = {body.size(), ps::hash_bytes(std::as_bytes(std::span(body)))};
  std::string file(mark);
  file.append(reinterpret_cast<const char*>(numbers), sizeof numbers);
  return file.append(body);
}

}  // namespace

extern "C" int fuzz_ps_checkpoint(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  const std::string_view input = fuzz::text_in(data, size);
  auto [body, rest] = parted(input);
  const bool is_older = rest.starts_with('2');
  if (is_older) rest.remove_prefix(1);
  // Not structured bindings: clang before version 16 captures none in a lambda.
  const auto part_file = parted(rest);
  const std::string_view header = part_file.first, pieces = part_file.second;
  restore(std::as_bytes(std::span(rest)));
  folder.put("manifest", sealed("TRIPSMF3", body));
  fuzz::is_read([&] {
    const ps::CheckpointManifest read = ps::read_manifest(folder.path());
    for (ps::SavedPart part : read.parts) {
      const std::string file = sealed(is_older ? "TRIPSPT2" : "TRIPSPT3", header).append(pieces);
      folder.put("p.part", file);
      part.file = "p.part";
      part.num_bytes = file.size();
      part.hash = ps::hash_bytes(std::as_bytes(std::span(header)));
      fuzz::is_read([&] { ps::read_part(folder.path(), part, {}); });
    }
  });
  return 0;
}
