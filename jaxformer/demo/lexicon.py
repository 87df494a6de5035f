"""The words: nouns with gender and classes, adjectives with their forms and place, names and numbers.

Classes tell which words make sense together ("food" is eaten, "text" is read), so that sentences are plausible.
"""

from __future__ import annotations

import dataclasses

VOWELS = "aeiouyâàéèêëîïôûœæh"
ASPIRATED = frozenset("héros hibou hiboux haricot haricots huit onze haut haute hauts hautes".split())


def begins_with_vowel(word: str) -> bool:
    """Returns True if the preceding word elides: before a vowel, or an h that is not aspirated."""
    return word[0].lower() in VOWELS and word.lower() not in ASPIRATED


@dataclasses.dataclass(frozen=True)
class Noun:
    """A noun and its classes; places also have the prepositions of being there and of going there."""

    english: str
    english_plural: str
    french: str
    french_plural: str
    feminine: bool
    kinds: frozenset[str]
    at: tuple[str, str] = ("", "")  # English and French preposition: "on", "sur"
    to: str = ""  # French preposition after a verb of motion; "" for places that are not a destination


@dataclasses.dataclass(frozen=True)
class Adjective:
    """An adjective; `before` if it stands before a French noun, `liaison` its masculine singular before a vowel."""

    english: str
    masculine: str
    feminine: str
    masculine_plural: str
    feminine_plural: str
    before: bool
    liaison: str
    kind: str
    suits: frozenset[str]

    def form(self, *, feminine: bool, plural: bool) -> str:
        """Returns the form of this gender and number."""
        if plural:
            return self.feminine_plural if feminine else self.masculine_plural
        return self.feminine if feminine else self.masculine


def _plural(word: str, irregular: str = "") -> str:
    if irregular:
        return irregular
    if word[-1] in "sxz":
        return word
    if word.endswith(("eau", "eu")):
        return word + "x"
    return word[:-2] + "aux" if word.endswith("al") else word + "s"


def _english_plural(word: str) -> str:
    if word.endswith(("s", "x", "ch", "sh")):
        return word + "es"
    return word[:-1] + "ies" if word.endswith("y") and word[-2] not in "aeiou" else word + "s"


def _nouns(table: str) -> tuple[Noun, ...]:
    """Reads lines of ``english[/plural] french[/plural] m|f kinds [at sur à]``."""
    nouns = []
    for line in table.strip().splitlines():
        english, french, gender, kinds, *place = line.split()
        one, _, many = english.partition("/")
        un, _, des = french.partition("/")
        at, to = (("", ""), "") if not place else ((place[0], place[1]), place[2].strip("-"))
        classes = frozenset(kinds.split(",") + (["place"] if place else []))
        nouns.append(Noun(one, many or _english_plural(one), un, _plural(un, des), gender == "f", classes, at, to))
    return tuple(nouns)


NOUNS = _nouns("""
man/men homme m person,adult,young
woman/women femme f person,adult,young
boy garçon m person,child
girl fille f person,child
child/children enfant m person,child
king roi m person,adult,young
queen reine f person,adult,young
princess princesse f person,adult,young
hero/heroes héros m person,adult,young
doctor médecin m person,adult,young,worker,foreign,ours,carer
teacher professeur m person,adult,young,worker,foreign,ours,carer
lawyer avocat m person,adult,young,worker,foreign,ours,carer
nurse infirmière f person,adult,young,worker,foreign,carer
farmer fermier m person,adult,young,worker,foreign
baker boulanger m person,adult,young,worker,foreign
singer chanteur m person,adult,young,worker,foreign
actor acteur m person,adult,young,worker,foreign
actress actrice f person,adult,young,worker,foreign
waitress serveuse f person,young,worker,foreign
student étudiant m person,young,worker,foreign
neighbour voisin m person,adult,foreign,ours,carer
uncle oncle m person,adult,family,ours
aunt tante f person,adult,family,ours
brother frère m person,young,family,ours
sister sœur f person,young,family,ours
mother mère f person,adult,family,ours,single
father père m person,adult,family,ours,single
grandmother grand-mère/grands-mères f person,adult,family,ours
daughter fille f person,young,family,ours
son fils m person,young,family,ours
friend ami m person,adult,family,foreign,ours
cousin cousin m person,young,family,foreign,ours
dog chien m animal,fur,ours
cat chat m animal,fur,ours
horse cheval/chevaux m animal,fur,ours
cow vache f animal,fur,ours
bird oiseau m animal,fur
owl hibou/hiboux m animal,fur
goat chèvre f animal,fur,ours
mouse/mice souris f animal,fur
rabbit lapin m animal,fur,ours
hen poule f animal,fur,ours
apple pomme f food,ripe,buy,ours
orange orange f food,ripe,buy,ours
pear poire f food,ripe,buy,ours
tomato/tomatoes tomate f food,ripe,buy
strawberry fraise f food,ripe,buy
egg œuf m food,buy,ours
cake gâteau m food,buy,ours
sandwich sandwich m food,buy,ours
bean haricot m food,buy
book livre m text,writing,fat,buy,keep,ours
letter lettre f text,writing,keep,open,ours
newspaper journal/journaux m text,buy,keep,ours
magazine revue f text,buy,keep,ours
story histoire f text,writing
poem poème m text,writing
article article m text,writing
novel roman m text,writing,buy,keep,fat
house maison f building,coloured,home,paint,ours,dear in dans -
castle château m building,home,dear in dans à
hotel hôtel m building,home,work,dear at à à
school école f building,work at à à
church église f building,coloured,stage in dans à
hospital hôpital/hôpitaux m building,work at à à
station gare f building,wait at à à
museum musée m building,work,open,shut at à à
library bibliothèque f building,work,open,shut at à à
theatre théâtre m building,work,stage,open,shut at à à
shop magasin m building,work,open,shut in dans à
restaurant restaurant m building,work,wait,open,shut,dear at à à
market marché m ground,work,wait at à à
farm ferme f ground,home,work,ours at à à
garden jardin m ground,walk,stage,wait,ours in dans à
park parc m ground,walk,wait in dans à
village village m ground,home,walk,ours in dans à
city ville f ground,home,walk,ours in dans à
beach plage f ground,walk on sur à
island île f ground,home,walk on sur sur
forest forêt f ground,walk in dans dans
street rue f ground,walk,stage,wait,wash,ours in dans -
kitchen cuisine f room,wait,wash,ours in dans dans
office bureau m room,work,wash,ours in dans à
lake lac m water in dans -
river rivière f water in dans -
sea mer f water,single in dans -
car voiture f vehicle,coloured,drive,buy,dear,wash,ours
bus autobus m vehicle,coloured,drive,catch
truck camion m vehicle,coloured,drive,buy,dear,wash,ours
bicycle vélo m vehicle,coloured,buy,dear,paint,weigh,ours
boat bateau m vehicle,coloured,catch,buy,dear,paint,ours
train train m vehicle,catch
plane avion m vehicle,catch
table table f thing,coloured,buy,dear,paint,weigh,round,ours
chair chaise f thing,coloured,buy,carry,paint,weigh,break,ours
bed lit m thing,coloured,buy,dear,ours
lamp lampe f thing,coloured,buy,carry,break,weigh,ours
door porte f thing,coloured,open,shut,paint,ours
window fenêtre f thing,open,shut,wash,break,ours
wall mur m thing,coloured,paint
key clé f thing,keep,small,ours
watch montre f thing,keep,buy,dear,break,small,ours
box boîte f thing,coloured,keep,carry,open,shut,weigh,empty,ours
bag sac m thing,coloured,keep,carry,buy,open,weigh,empty,ours
bottle bouteille f thing,keep,carry,open,break,empty
glass verre m thing,break,wash,empty,buy
plate assiette f thing,coloured,break,wash,empty,round,buy
knife/knives couteau m thing,keep,wash,buy
ball balle f thing,coloured,keep,buy,ours
umbrella parapluie m thing,coloured,keep,carry,break,buy,ours
computer ordinateur m thing,buy,dear,carry,weigh,break,ours
picture tableau m thing,hide,buy,dear,carry,paint
flower fleur f thing,coloured,buy,carry
stone pierre f fat,keep,weigh,carry,round
tree arbre m ground,plant
hat chapeau m clothes,coloured,keep,buy,dear,ours
coat manteau m clothes,coloured,keep,buy,dear,weigh,ours
shirt chemise f clothes,coloured,buy,wash,dear,ours
dress robe f clothes,coloured,buy,wash,dear,ours
skirt jupe f clothes,coloured,buy,wash,dear,ours
shoe chaussure f clothes,coloured,keep,buy,wash,dear,ours
scarf/scarves écharpe f clothes,coloured,keep,buy,wash,ours
""")


def _adjectives(table: str) -> tuple[Adjective, ...]:
    """Reads lines of ``english kind before|after classes masculine [feminine [masculine-plural [liaison]]]``."""
    found = []
    for line in table.strip().splitlines():
        english, kind, place, suits, masculine, *rest = line.split()
        feminine = rest[0] if rest else masculine if masculine.endswith("e") else masculine + "e"
        plural = rest[1] if len(rest) > 1 else masculine if masculine[-1] in "sx" else masculine + "s"
        liaison = rest[2] if len(rest) > 2 else masculine
        many = feminine if plural == masculine == feminine else feminine + "s"
        found.append(Adjective(english, masculine, feminine, plural, many, place == "before", liaison, kind, frozenset(suits.split(","))))
    return tuple(found)


ADJECTIVES = _adjectives("""
small size before water,child,animal,food,building,ground,room,vehicle,thing,fat petit
big size before animal,food,fat gros grosse
big size before water,building,ground,room,vehicle,thing,clothes,child grand
old age before adult,animal,building,ground,room,vehicle,thing,clothes,text vieux vieille vieux vieil
young age before young,child,animal jeune
new age before worker,building,vehicle,thing,clothes,text nouveau nouvelle nouveaux nouvel
beautiful look before water,building,ground,clothes,thing,text,fur beau belle beaux bel
pretty look before clothes,building,room joli
good look before food,text,worker bon bonne
bad look before food,text,worker mauvais mauvaise
white colour after coloured,fur blanc blanche
black colour after coloured,fur noir
grey colour after coloured,fur gris grise
brown colour after coloured,fur marron marron marron
red colour after coloured rouge
green colour after coloured vert
blue colour after coloured bleu
yellow colour after coloured jaune
French origin after foreign,text,clothes,drive français française
Italian origin after foreign,text,clothes,drive italien italienne
English origin after foreign,text,clothes,drive anglais anglaise
Spanish origin after foreign,text,clothes,drive espagnol
Japanese origin after foreign,text,clothes,drive japonais japonaise
American origin after foreign,text,clothes,drive américain
German origin after foreign,text,clothes,drive allemand
happy mood after person heureux heureuse
sad mood after person,text triste
tired mood after person,animal fatigué
angry mood after person furieux furieuse
rich mood after adult,foreign riche
proud mood after person fier fière
polite mood after person poli
brave mood after person courageux courageuse
intelligent mood after person,fur intelligent
famous mood after worker,writing célèbre
heavy state after weigh lourd
light state after weigh léger légère
clean state after wash propre
broken state after break cassé
empty state after empty vide
open state after shut ouvert
closed state after shut fermé
expensive state after dear cher chère
round state after round rond
ripe state after ripe mûr
interesting state after text intéressant
""")


MASSES = {  # food and drink without a plural: English, French, feminine
    "bread": ("pain", False, "food"), "meat": ("viande", True, "food"), "cheese": ("fromage", False, "food"),
    "soup": ("soupe", True, "food"), "rice": ("riz", False, "food"), "water": ("eau", True, "drink"),
    "milk": ("lait", False, "drink"), "wine": ("vin", False, "drink"), "tea": ("thé", False, "drink"),
}  # fmt: skip
INSTRUMENTS = {"piano": ("piano", False), "violin": ("violon", False), "guitar": ("guitare", True), "flute": ("flûte", True)}
SPORTS = {"football": ("football", False), "tennis": ("tennis", False), "chess": ("échecs", None), "cards": ("cartes", None)}
MONTHS = dict(
    zip(
        "January February March April May June July August September October November December".split(),
        "janvier février mars avril mai juin juillet août septembre octobre novembre décembre".split(),
        strict=True,
    )
)
YEARS = "1945 1957 1962 1968 1974 1981 1989 1992 1995 1999 2001 2004 2008 2012 2016 2020".split()
NUMBERS = dict(zip("two three four five six ten".split(), "deux trois quatre cinq six dix".split(), strict=True))
INSTITUTIONS = (  # noun of two adjectives, which French puts after it in the opposite order
    ("Area", "zone", True), ("Community", "communauté", True), ("Union", "union", True), ("System", "système", False),
    ("Council", "conseil", False), ("Programme", "programme", False), ("Agency", "agence", True), ("Forum", "forum", False),
)  # fmt: skip
OUTER = (("European", "européen", "européenne"), ("African", "africain", "africaine"), ("American", "américain", "américaine"),
         ("Asian", "asiatique", "asiatique"), ("French", "français", "française"))  # fmt: skip
INNER = (("Economic", "économique", "économique"), ("Political", "politique", "politique"), ("Monetary", "monétaire", "monétaire"),
         ("Scientific", "scientifique", "scientifique"), ("Social", "social", "sociale"), ("Public", "public", "publique"))  # fmt: skip
DOCUMENTS = (("agreement", "accord", False), ("treaty", "traité", False), ("report", "rapport", False),
             ("law", "loi", True), ("convention", "convention", True), ("letter", "lettre", True))  # fmt: skip
PASSIVES = (("signed", "signé"), ("published", "publié"), ("adopted", "adopté"), ("rejected", "rejeté"),
            ("translated", "traduit"), ("presented", "présenté"))  # fmt: skip
