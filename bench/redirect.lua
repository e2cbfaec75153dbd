-- GET of a random code of CODES (a file of one code a line) with the headers of one of eight
-- visitors, so that two requests of a connection are hardly ever alike. Texts are made ahead.
local texts = {}

local function visitor(n)
  return "\r\nHost: s.example"
    .. "\r\nConnection: keep-alive"
    .. "\r\nsec-ch-ua: \"Chromium\";v=\"" .. (120 + n) .. "\", \"Not A(Brand\";v=\"24\""
    .. "\r\nsec-ch-ua-mobile: ?0"
    .. "\r\nUpgrade-Insecure-Requests: 1"
    .. "\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) "
    .. "Chrome/" .. (120 + n) .. ".0.0.0 Safari/537.36"
    .. "\r\nAccept: text/html,application/xhtml+xml,application/xml;q=0.9,image/webp,*/*;q=0.8"
    .. "\r\nSec-Fetch-Site: cross-site"
    .. "\r\nSec-Fetch-Mode: navigate"
    .. "\r\nSec-Fetch-Dest: document"
    .. "\r\nReferer: https://news.example/2026/story-" .. (1000 + 37 * n)
    .. "\r\nAccept-Encoding: gzip, deflate, br"
    .. "\r\nAccept-Language: en-GB,en;q=0." .. (n + 1)
    .. "\r\n\r\n"
end

function init(args)
  local number = 0
  for code in io.lines(os.getenv("CODES")) do
    texts[#texts + 1] = "GET /" .. code .. " HTTP/1.1" .. visitor(number % 8)
    number = number + 1
  end
  math.randomseed(os.time())
end

function request()
  return texts[math.random(#texts)]
end
