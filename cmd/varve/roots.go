package main

// Where the system has no certificates of authorities, as in the image, those are trusted that Mozilla trusts.
import _ "golang.org/x/crypto/x509roots/fallback"
