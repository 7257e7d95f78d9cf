// The manifest and one part of a parameter server's checkpoint, parted by eight bytes 0x1f. Both begin with a
// mark, a size and a checksum, which are those that they should have.
#include "tests/fuzz/reading.h"
#include "trireme/ps/checkpoint_file.h"
#include "trireme/ps/internal/hash.h"

using namespace trireme;

namespace {

std::string sealed(std::string_view mark, std::string_view body) {
  const std::uint64_t numbers[2] = {body.size(), ps::hash_bytes(std::as_bytes(std::span(body)))};
  std::string file(mark);
  file.append(reinterpret_cast<const char*>(numbers), sizeof numbers);
  return file.append(body);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  const std::string_view input = fuzz::text_in(data, size);
  const std::size_t parted = input.find(std::string(8, '\x1f'));
  const std::string_view body = input.substr(0, parted);
  const std::string_view rest = parted == std::string_view::npos ? "" : input.substr(parted + 8);
  folder.put("manifest", sealed("TRIPSMF2", body));
  fuzz::is_read([&] {
    const ps::CheckpointManifest read = ps::read_manifest(folder.path());
    for (ps::SavedPart part : read.parts) {
      const std::string file = sealed("TRIPSPT2", rest);
      folder.put("p.part", file);
      part.file = "p.part";
      part.num_bytes = file.size();
      part.hash = ps::hash_bytes(std::as_bytes(std::span(rest)));
      fuzz::is_read([&] { ps::read_part(folder.path(), part); });
    }
  });
  return 0;
}
