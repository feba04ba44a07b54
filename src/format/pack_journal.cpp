// The journal of a pack under way: what is finished and safe on the disk.
#include "format/pack_journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>

namespace millrace::format {
namespace {

constexpr uint64_t kMaxJournal = uint64_t{1} << 30;
constexpr size_t kSealBytes = 18;  // " #" and 16 digits

std::string path_of(const std::string& folder) { return folder + "/" + std::string(kJournalName); }

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const size_t space = text.find(' ');
    words.push_back(text.substr(0, space));
    text = space == text.npos ? std::string_view{} : text.substr(space + 1);
  }
  return words;
}

bool number(std::string_view text, uint64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// False when the line is not one that this version writes next.
bool take(std::string_view text, bool first, JournalState& state) {
  const auto words = words_of(text);
  if (first) {
    if (words.size() != 3 || words[0] != "head") return false;
    const auto source = hash_from_hex(words[1]), table = hash_from_hex(words[2]);
    if (!source || !table) return false;
    state.source = *source;
    state.table = *table;
    return true;
  }
  uint64_t index = 0;
  if (words.size() < 3 || !number(words[1], index)) return false;
  std::vector<Hash128> hashes;
  for (size_t i = 2; i < words.size(); ++i) {
    const auto hash = hash_from_hex(words[i]);
    if (!hash) return false;
    hashes.push_back(*hash);
  }
  if (words[0] == "items" && index == state.items.size()) {
    state.items.insert(state.items.end(), hashes.begin(), hashes.end());
    return true;
  }
  if (words[0] == "file" && hashes.size() == 1 && index <= UINT32_MAX) {
    state.files[static_cast<uint32_t>(index)] = hashes[0];
    return true;
  }
  return false;
}

}  // namespace

Expected<JournalState> Journal::load(const std::string& folder) {
  const std::string path = path_of(folder);
  MILLRACE_ASSIGN(const std::string text, read_small(path, kMaxJournal));
  JournalState state;
  std::string_view left = text;
  while (!left.empty()) {
    const size_t end = left.find('\n');
    if (end == left.npos || end < kSealBytes) break;
    const std::string_view body = left.substr(0, end - kSealBytes);
    if (left.substr(end - kSealBytes, kSealBytes) != fmt::format(" #{:016x}", short_hash(body)) ||
        !take(body, state.bytes == 0, state)) {
      break;
    }
    state.bytes += end + 1;
    left.remove_prefix(end + 1);
  }
  if (state.bytes == 0) return fail(Code::kCorrupt, "{}: no whole line", path);
  return state;
}

Expected<Journal> Journal::create(const std::string& folder, const Hash128& source,
                                  const Hash128& table) {
  Journal journal;
  journal.path_ = path_of(folder);
  journal.fd_ = Fd(::open(journal.path_.c_str(),
                          O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!journal.fd_.open()) return io_error(journal.path_, "create", errno);
  MILLRACE_TRY(journal.line(fmt::format("head {} {}", to_hex(source), to_hex(table))));
  MILLRACE_TRY(sync_folder(folder));
  return journal;
}

Expected<Journal> Journal::resume(const std::string& folder, const JournalState& state) {
  Journal journal;
  journal.path_ = path_of(folder);
  journal.fd_ = Fd(::open(journal.path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW));
  if (!journal.fd_.open()) return io_error(journal.path_, "open", errno);
  // A torn line must go before anything is appended to it.
  if (::ftruncate(journal.fd_.get(), static_cast<off_t>(state.bytes)) != 0) {
    return io_error(journal.path_, "truncate", errno);
  }
  return journal;
}

Status Journal::line(std::string text) {
  text += fmt::format(" #{:016x}\n", short_hash(text));
  std::string_view left = text;
  while (!left.empty()) {
    const ssize_t put = ::write(fd_.get(), left.data(), left.size());
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return io_error(path_, "write", put < 0 ? errno : ENOSPC);
    left.remove_prefix(static_cast<size_t>(put));
  }
  if (::fdatasync(fd_.get()) != 0) return io_error(path_, "fsync", errno);
  return {};
}

Status Journal::add_items(uint64_t first, std::span<const Hash128> hashes) {
  if (hashes.empty()) return {};
  std::string text = fmt::format("items {}", first);
  for (const Hash128& hash : hashes) text.append(" ").append(to_hex(hash));
  return line(std::move(text));
}

Status Journal::add_file(uint32_t index, const Hash128& hash) {
  return line(fmt::format("file {} {}", index, to_hex(hash)));
}

}  // namespace millrace::format
